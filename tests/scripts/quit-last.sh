#!/bin/sh
# Quits at the end, without a start.
# Seen: epilogues of workflow managers
# --mps: 'its script names'
#SBATCH --ntasks=2 --gres=gpu:1

cuda-app --hold 0.2 &
cuda-app --hold 0.2
wait
echo quit | nvidia-cuda-mps-control >/dev/null 2>&1
exit 0
