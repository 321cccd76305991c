#!/bin/sh
# The step gets no environment of the script.
# Seen: srun --export=NONE
# --mps: same
#SBATCH --ntasks=2 --gres=gpu:1

srun --export=NONE "$(command -v cuda-app)" --hold 0.2
