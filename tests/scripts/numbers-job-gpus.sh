#!/bin/sh
# Sets CUDA_VISIBLE_DEVICES from SLURM_JOB_GPUS.
# Seen: pages of centers without ConstrainDevices
# --mps: 'its script writes numbers'
#SBATCH --ntasks=4 --gres=gpu:2

export CUDA_VISIBLE_DEVICES=$SLURM_JOB_GPUS
cuda-app --hold 0.2 &
cuda-app --hold 0.2
wait
