#!/bin/sh
# A job of the administrator.
# Seen: burn-in, DCGM, srun hostname in every partition
# --mps: 'root'
#SBATCH --ntasks=2 --gres=gpu:1

# By: root
srun true
echo "the step: $?"
cuda-app --hold 0.1
