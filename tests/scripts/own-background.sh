#!/bin/sh
# Starts an MPS in its own directories, and its programs in the background.
# Seen: pages of computing centers for many small runs on one GPU
# --mps: 'its script names'
#SBATCH --ntasks=4 --gres=gpu:1

export CUDA_MPS_PIPE_DIRECTORY=$PWD/pipe CUDA_MPS_LOG_DIRECTORY=$PWD/log
mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"

nvidia-cuda-mps-control -d
for run in 1 2 3 4; do cuda-app --hold 0.3 & done
wait
echo quit | nvidia-cuda-mps-control
