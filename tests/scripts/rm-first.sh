#!/bin/sh
# Removes the files of the directory before the start.
# Seen: cleanup idioms: rm -rf $CUDA_MPS_PIPE_DIRECTORY/*
# --mps: 'its script names'
#SBATCH --ntasks=2 --gres=gpu:1

: "${CUDA_MPS_PIPE_DIRECTORY:=/tmp/nvidia-mps}"
export CUDA_MPS_PIPE_DIRECTORY
rm -rf "$CUDA_MPS_PIPE_DIRECTORY"/*
nvidia-cuda-mps-control -d
cuda-app --hold 0.2 &
cuda-app --hold 0.2
wait
echo quit | nvidia-cuda-mps-control
