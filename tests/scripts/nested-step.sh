#!/bin/sh
# A step starts steps.
# Seen: workflow engines in an allocation
# --mps: same
#SBATCH --ntasks=4 --gres=gpu:1

srun --ntasks=1 --overlap sh -c 'srun --ntasks=2 --overlap cuda-app --hold 0.1'
