#!/bin/sh
# Prints what the job has.
# Seen: the first lines of most job scripts
# --mps: any: the list may hold UUIDs, and its order varies by task
#SBATCH --ntasks=4 --gres=gpu:2

echo "GPUs: $CUDA_VISIBLE_DEVICES, order: $CUDA_DEVICE_ORDER"
srun sh -c 'echo "$SLURM_PROCID: $CUDA_VISIBLE_DEVICES"'
env | grep -c CUDA
