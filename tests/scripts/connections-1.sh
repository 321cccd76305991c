#!/bin/sh
# CUDA_DEVICE_MAX_CONNECTIONS=1, as Megatron demands.
# Seen: Megatron-LM
# --mps: same
#SBATCH --ntasks=8 --gres=gpu:1

export CUDA_DEVICE_MAX_CONNECTIONS=1
srun cuda-app --hold 0.3
