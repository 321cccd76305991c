#!/bin/sh
# The same in a step.
# Seen: srun apptainer run --nv
# --mps: error 46
#SBATCH --ntasks=2 --gres=gpu:1

srun apptainer exec --nv image.sif cuda-app --hold 0.3
