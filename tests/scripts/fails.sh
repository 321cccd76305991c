#!/bin/sh
# The program fails, and the job with it.
# Seen: everywhere
# --mps: same
#SBATCH --ntasks=4 --gres=gpu:1

srun sh -c 'cuda-app --hold 0.1; exit 7'
