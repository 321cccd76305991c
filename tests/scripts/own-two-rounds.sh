#!/bin/sh
# Quits its MPS between two runs, and starts it again.
# Seen: benchmarks of scenarios with and without MPS
# --mps: 'its script names'
#SBATCH --ntasks=2 --gres=gpu:1

export CUDA_MPS_PIPE_DIRECTORY=$PWD/pipe CUDA_MPS_LOG_DIRECTORY=$PWD/log
mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
for round in 1 2; do
    until nvidia-cuda-mps-control -d >/dev/null 2>&1; do sleep 0.1; done
    cuda-app --hold 0.2 &
    cuda-app --hold 0.2
    wait
    echo quit | nvidia-cuda-mps-control
done
unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
cuda-app
