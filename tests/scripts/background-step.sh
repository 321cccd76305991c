#!/bin/sh
# A step in the background, the script ends after it.
# Seen: srun & wait
# --mps: same
#SBATCH --ntasks=4 --gres=gpu:1

srun --ntasks=2 --exact --overlap cuda-app --hold 0.3 &
srun --ntasks=2 --exact --overlap cuda-app --hold 0.3 &
wait
