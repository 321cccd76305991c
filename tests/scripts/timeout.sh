#!/bin/sh
# A program ends by timeout.
# Seen: timeout 10m in loops
# --mps: same
#SBATCH --ntasks=2 --gres=gpu:1

{ timeout -s KILL 0.5 cuda-app --hold 20; } 2>/dev/null
echo "ended with $?"
cuda-app
