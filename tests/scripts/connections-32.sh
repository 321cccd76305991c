#!/bin/sh
# CUDA_DEVICE_MAX_CONNECTIONS=32 with eight ranks.
# Seen: users of QUDA and Kaldi
# --mps: 'CUDA_DEVICE_MAX_CONNECTIONS'
#SBATCH --ntasks=8 --gres=gpu:1

export CUDA_DEVICE_MAX_CONNECTIONS=32
srun cuda-app --hold 1
