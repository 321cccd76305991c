#!/bin/sh
# Two steps at once, with one of the two GPUs each.
# Seen: bags of tasks: srun --exact in the background
# --mps: same
#SBATCH --ntasks=4 --gres=gpu:2

srun --exact --ntasks=2 --gres=gpu:1 cuda-app --hold 0.3 &
srun --exact --ntasks=2 --gres=gpu:1 cuda-app --hold 0.3 &
wait
