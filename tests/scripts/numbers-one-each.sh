#!/bin/sh
# Gives each task one GPU of the list by its local rank.
# Seen: select_gpu wrappers: one rank, one GPU
# --mps: same
#SBATCH --ntasks=4 --gres=gpu:2

cat >select_gpu <<'END'
IFS=,
set -- $CUDA_VISIBLE_DEVICES
shift $((SLURM_LOCALID % $#))
export CUDA_VISIBLE_DEVICES=$1
exec cuda-app --hold 0.2
END
srun sh select_gpu
