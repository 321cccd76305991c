#!/bin/sh
# Its own MPS for some of its programs, none for the rest.
# Seen: a coupled run: solver under MPS, analysis without
# --mps: 'its script names'
#SBATCH --ntasks=2 --gres=gpu:1

export CUDA_MPS_PIPE_DIRECTORY=$PWD/pipe CUDA_MPS_LOG_DIRECTORY=$PWD/log
mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
nvidia-cuda-mps-control -d
cuda-app --hold 0.4 &
sleep 0.2
env -u CUDA_MPS_PIPE_DIRECTORY cuda-app
wait
echo quit | nvidia-cuda-mps-control
