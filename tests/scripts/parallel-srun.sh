#!/bin/sh
# A queue of steps, four at once.
# Seen: parallel -j $SLURM_NTASKS srun --exact -n1
# --mps: same
#SBATCH --ntasks=4 --gres=gpu:1

seq 6 | xargs -P 4 -I{} srun --exact --overlap --ntasks=1 --gres=gpu:1 cuda-app --hold 0.1
