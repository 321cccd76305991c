#!/bin/sh
# Reads CUDA_VISIBLE_DEVICES as numbers.
# Seen: ray, dask-cuda, nixl: int() of each word
# --mps: any: the list may hold UUIDs
#SBATCH --ntasks=4 --gres=gpu:2

srun python3 -c 'import os; print(len([int(word) for word in os.environ["CUDA_VISIBLE_DEVICES"].split(",")]))'
cuda-app
