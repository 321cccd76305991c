#!/bin/sh
# Prints the variables about GPUs that a task has, with and without a list of Slurm's.
# Seen: bug reports, and launchers that read them
# --mps: any: mpsd sets them
#SBATCH --ntasks=2 --gres=gpu:1

for bind in none closest; do
    srun --gpu-bind=$bind sh -c 'env | grep -e VISIBLE_DEVICES -e DEVICE_ORDER -e JAX | sort'
done
