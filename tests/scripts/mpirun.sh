#!/bin/sh
# mpirun in the script.
# Seen: mpi4jax, signac: no srun
# --mps: same
#SBATCH --ntasks=4 --gres=gpu:2

mpirun -n 4 cuda-app --hold 0.2
