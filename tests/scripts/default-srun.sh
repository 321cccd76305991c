#!/bin/sh
# Starts the MPS in the default directory for the tasks of a step.
# Seen: pages of computing centers, before they name directories
# --mps: 'its script names'
#SBATCH --ntasks=4 --gres=gpu:1

nvidia-cuda-mps-control -d
srun cuda-app --hold 0.3
echo quit | nvidia-cuda-mps-control
