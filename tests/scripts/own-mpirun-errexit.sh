#!/bin/sh
# Quits an MPS that is not there, and ends at any failure.
# Seen: cleanup before a run, under set -e
# --mps: 'its script names'
#SBATCH --ntasks=4 --gres=gpu:1

echo quit | nvidia-cuda-mps-control && echo "there was one" || echo "there was none"
set -e
export CUDA_MPS_PIPE_DIRECTORY=$PWD/pipe CUDA_MPS_LOG_DIRECTORY=$PWD/log
mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
nvidia-cuda-mps-control -d
mpirun -n 4 cuda-app --hold 0.3
echo quit | nvidia-cuda-mps-control
