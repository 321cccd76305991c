#!/bin/sh
# Starts an MPS in its own directories, and a step of four tasks.
# Seen: job scripts of molecular dynamics
# --mps: 'its script names'
#SBATCH --ntasks=4 --gres=gpu:1

export CUDA_MPS_PIPE_DIRECTORY=$PWD/pipe CUDA_MPS_LOG_DIRECTORY=$PWD/log
mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"

nvidia-cuda-mps-control -d
srun cuda-app --hold 0.3
echo quit | nvidia-cuda-mps-control
