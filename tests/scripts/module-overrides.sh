#!/bin/sh
# A module overwrites CUDA_MPS_PIPE_DIRECTORY, and starts nothing.
# Seen: module files of centers
# --mps: 'its script names'
#SBATCH --ntasks=2 --gres=gpu:1

module() { export CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps-$USER CUDA_MPS_LOG_DIRECTORY=/tmp/nvidia-log-$USER; }
module load cuda
cuda-app --hold 0.3 &
cuda-app --hold 0.3
wait
