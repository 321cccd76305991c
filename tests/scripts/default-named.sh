#!/bin/sh
# Names the default directory.
# Seen: the manual of NVIDIA: export CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps
# --mps: 'its script names'
#SBATCH --ntasks=2 --gres=gpu:1

export CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps CUDA_MPS_LOG_DIRECTORY=/tmp/nvidia-log
nvidia-cuda-mps-control -d
cuda-app --hold 0.2 &
cuda-app --hold 0.2
wait
echo quit | nvidia-cuda-mps-control
