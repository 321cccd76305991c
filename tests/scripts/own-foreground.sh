#!/bin/sh
# Keeps the control daemon in the foreground, as a child.
# Seen: supervised starts: runit, s6, docker compose
# --mps: 'its script names'
#SBATCH --ntasks=4 --gres=gpu:1

export CUDA_MPS_PIPE_DIRECTORY=$PWD/pipe CUDA_MPS_LOG_DIRECTORY=$PWD/log
mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
nvidia-cuda-mps-control -f >/dev/null &
daemon=$!
until [ -S "$CUDA_MPS_PIPE_DIRECTORY/control" ]; do sleep 0.1; done
cuda-app --hold 0.2 &
cuda-app --hold 0.2
wait $!
echo quit | nvidia-cuda-mps-control
wait $daemon
echo "the daemon ended with $?"
