#!/bin/sh
# A program in a job of one task.
# Seen: everywhere
# --mps: same
#SBATCH --ntasks=1 --gres=gpu:1

cuda-app
