#!/bin/sh
# An MPS in the default directory for the ranks of mpirun.
# Seen: job scripts of molecular dynamics on sites without srun
# --mps: 'its script names'
#SBATCH --ntasks=4 --gres=gpu:1

nvidia-cuda-mps-control -d
echo "the daemon: $?"
mpirun -n 4 cuda-app --hold 0.3
echo quit | nvidia-cuda-mps-control
