#!/bin/sh
# CUDA_DEVICE_MAX_CONNECTIONS=8 with twenty programs.
# Seen: users of hyper-Q
# --mps: error 809
#SBATCH --ntasks=2 --gres=gpu:1

export CUDA_DEVICE_MAX_CONNECTIONS=8
for run in $(seq 20); do cuda-app --hold 1.5 & done
wait
