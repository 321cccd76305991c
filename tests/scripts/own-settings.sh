#!/bin/sh
# Limits its programs by its own MPS.
# Seen: tutorials of multi-tenant inference
# --mps: 'its script names'
#SBATCH --ntasks=4 --gres=gpu:1

export CUDA_MPS_PIPE_DIRECTORY=$PWD/pipe CUDA_MPS_LOG_DIRECTORY=$PWD/log
mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
nvidia-cuda-mps-control -d
echo set_default_active_thread_percentage 25 | nvidia-cuda-mps-control
for run in 1 2 3 4; do cuda-app --hold 0.2 & done
wait
echo get_default_active_thread_percentage | nvidia-cuda-mps-control
echo quit | nvidia-cuda-mps-control
