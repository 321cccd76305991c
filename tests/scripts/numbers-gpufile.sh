#!/bin/sh
# Reads the numbers of PBS_GPUFILE.
# Seen: pages of centers with Torque
# --mps: 'its script writes numbers'
#SBATCH --ntasks=4 --gres=gpu:2

[ -e "$PBS_GPUFILE" ] && CUDA_VISIBLE_DEVICES=$(sed 's/.*gpu//' "$PBS_GPUFILE" | paste -sd, -)
export CUDA_VISIBLE_DEVICES
cuda-app --hold 0.2 &
cuda-app --hold 0.2
wait
