#!/bin/sh
# Slurm gives each task a GPU.
# Seen: SchedMD: --ntasks-per-gpu, --gpus-per-task, --gpu-bind
# --mps: same
#SBATCH --ntasks=4 --gres=gpu:2

srun --gpu-bind=single:2 sh -c 'cuda-app --hold 0.2'
srun --ntasks=2 --gpus-per-task=1 sh -c 'cuda-app --hold 0.2'
