#!/bin/sh
# Containers that do not bind /run.
# Seen: apptainer exec --nv
# --mps: error 46
#SBATCH --ntasks=2 --gres=gpu:1

apptainer exec --nv image.sif cuda-app --hold 0.3 &
apptainer exec --nv image.sif cuda-app --hold 0.3
wait
