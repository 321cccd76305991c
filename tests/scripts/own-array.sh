#!/bin/sh
# Each element of an array has an MPS of its own.
# Seen: parameter sweeps
# --mps: 'its script names'
#SBATCH --array=1-2 --ntasks=2 --gres=gpu:1

export CUDA_MPS_PIPE_DIRECTORY=$PWD/pipe-$SLURM_ARRAY_TASK_ID CUDA_MPS_LOG_DIRECTORY=$PWD/log-$SLURM_ARRAY_TASK_ID
mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
nvidia-cuda-mps-control -d
cuda-app --hold 0.2 &
cuda-app --hold 0.2
wait
echo quit | nvidia-cuda-mps-control
