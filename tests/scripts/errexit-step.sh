#!/bin/sh
# set -e ends the job at its first failing step.
# Seen: workflows
# --mps: same
#SBATCH --ntasks=4 --gres=gpu:1

set -e
srun cuda-app
srun sh -c 'exit 5'
echo never
