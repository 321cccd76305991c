#!/bin/sh
# The same with set -e.
# Seen: job scripts with set -e
# --mps: 'its script names'
#SBATCH --ntasks=2 --gres=gpu:1

set -e
nvidia-cuda-mps-control -d
cuda-app --hold 0.2 &
cuda-app --hold 0.2
wait
echo quit | nvidia-cuda-mps-control
echo finished
