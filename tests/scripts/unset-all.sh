#!/bin/sh
# Removes the variables of CUDA.
# Seen: module purge, wrappers that reset CUDA_*
# --mps: error 46
#SBATCH --ntasks=2 --gres=gpu:1

unset $(env | sed -n 's/^\(CUDA_[A-Z_]*\)=.*/\1/p' | grep -v VISIBLE)
cuda-app --hold 0.3 &
cuda-app --hold 0.3
wait
