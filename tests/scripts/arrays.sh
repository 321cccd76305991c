#!/bin/sh
# An array without MPS.
# Seen: parameter sweeps
# --mps: same
#SBATCH --array=1-2 --ntasks=2 --gres=gpu:1

srun cuda-app --hold 0.1
echo "element $SLURM_ARRAY_TASK_ID"
