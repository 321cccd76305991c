#!/bin/sh
# 56 programs at once in a job of two tasks.
# Seen: GNU parallel, xargs -P
# --mps: error 808
#SBATCH --ntasks=2 --gres=gpu:1

for run in $(seq 56); do cuda-app --hold 3 & done
wait
