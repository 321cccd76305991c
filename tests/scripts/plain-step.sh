#!/bin/sh
# A step of four tasks.
# Seen: everywhere
# --mps: same
#SBATCH --ntasks=4 --gres=gpu:1

srun cuda-app --hold 0.2
