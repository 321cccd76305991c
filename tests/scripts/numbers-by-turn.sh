#!/bin/sh
# Four ranks take two GPUs in turn, by number.
# Seen: launch_per_rank scripts with more ranks than GPUs
# --mps: any: the numbers count the GPUs of the job, not of the node
#SBATCH --ntasks=4 --gres=gpu:2

srun sh -c 'CUDA_VISIBLE_DEVICES=$((SLURM_LOCALID % 2)) exec cuda-app --hold 0.2'
