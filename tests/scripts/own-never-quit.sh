#!/bin/sh
# Leaves its MPS to the end of the job.
# Seen: most short examples: no line quits the daemon
# --mps: 'its script names'
#SBATCH --ntasks=2 --gres=gpu:1

export CUDA_MPS_PIPE_DIRECTORY=$PWD/pipe CUDA_MPS_LOG_DIRECTORY=$PWD/log
mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
nvidia-cuda-mps-control -d
cuda-app --hold 0.2 &
cuda-app --hold 0.2
wait
