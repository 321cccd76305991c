#!/bin/sh
# CUDA_VISIBLE_DEVICES is the local rank.
# Seen: launch_per_rank scripts, VASP wrappers
# --mps: any: the numbers count the GPUs of the job, not of the node
#SBATCH --ntasks=2 --gres=gpu:2

srun sh -c 'CUDA_VISIBLE_DEVICES=$SLURM_LOCALID exec cuda-app --hold 0.2'
