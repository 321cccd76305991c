#!/bin/sh
# Wants no MPS: quits what may be there, and runs.
# Seen: notes of users after error 805
# --mps: 'its script names'
#SBATCH --ntasks=2 --gres=gpu:1

echo quit | nvidia-cuda-mps-control 2>/dev/null || true
cuda-app --hold 0.2 &
cuda-app --hold 0.2
wait
srun cuda-app
