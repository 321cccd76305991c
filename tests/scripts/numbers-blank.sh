#!/bin/sh
# Writes the list with blanks.
# Seen: IFS=" " before the list is joined
# --mps: 'its script writes numbers'
#SBATCH --ntasks=4 --gres=gpu:2

CUDA_VISIBLE_DEVICES=$(echo "$CUDA_VISIBLE_DEVICES" | tr , ' ')
export CUDA_VISIBLE_DEVICES
cuda-app --hold 0.2 &
cuda-app --hold 0.2
wait
