#!/bin/sh
# A queue of runs, four at once.
# Seen: GNU parallel -j 4
# --mps: same
#SBATCH --ntasks=4 --gres=gpu:1

seq 8 | xargs -P 4 -I{} cuda-app --hold 0.1
