#!/bin/sh
# Starts the MPS in the default directory.
# Seen: job scripts of training and tutorials: one line
# --mps: 'its script names'
#SBATCH --ntasks=2 --gres=gpu:1

nvidia-cuda-mps-control -d
echo "the daemon: $?"
cuda-app --hold 0.2 &
cuda-app --hold 0.2
wait
echo quit | nvidia-cuda-mps-control
