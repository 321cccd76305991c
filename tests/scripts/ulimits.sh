#!/bin/sh
# Small limits, no core files.
# Seen: ulimit -n, -u, -c
# --mps: same
#SBATCH --ntasks=2 --gres=gpu:1

ulimit -c 0
ulimit -n 64
cuda-app --hold 0.1 &
cuda-app --hold 0.1
wait
