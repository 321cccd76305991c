#!/bin/sh
# Quits an MPS that another job may have left, then starts its own.
# Seen: WESTPA with OpenMM: clean up first
# --mps: 'its script names'
#SBATCH --ntasks=2 --gres=gpu:1

echo quit | nvidia-cuda-mps-control 2>/dev/null
export CUDA_MPS_PIPE_DIRECTORY=$PWD/pipe CUDA_MPS_LOG_DIRECTORY=$PWD/log
mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
nvidia-cuda-mps-control -d
srun --ntasks=2 cuda-app --hold 0.2
srun --ntasks=1 cuda-app
echo quit | nvidia-cuda-mps-control
