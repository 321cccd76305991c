#!/bin/sh
# Checks that the GPU is not in an exclusive mode.
# Seen: burn-in scripts, DCGM
# --mps: any: it sets the mode (docs/slurm.md)
#SBATCH --ntasks=2 --gres=gpu:1

cuda-app --hold 0.4 &
sleep 0.2
env -i "$(command -v cuda-app)" >/dev/null
echo "a second context: $?"
wait
