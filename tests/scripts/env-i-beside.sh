#!/bin/sh
# One program lost its environment, the other has it.
# Seen: a driver and its workers
# --mps: error 46
#SBATCH --ntasks=2 --gres=gpu:1

cuda-app --hold 0.5 &
sleep 0.2
env -i "$(command -v cuda-app)" --hold 0.1
echo "ended with $?"
wait
