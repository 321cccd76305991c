#!/bin/sh
# Sets CUDA_VISIBLE_DEVICES from SLURM_STEP_GPUS in each task.
# Seen: wrappers of MPI programs
# --mps: 'its script writes numbers'
#SBATCH --ntasks=4 --gres=gpu:2

srun sh -c 'CUDA_VISIBLE_DEVICES=$SLURM_STEP_GPUS exec cuda-app --hold 0.2'
