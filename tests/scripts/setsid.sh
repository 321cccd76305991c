#!/bin/sh
# The programs leave the session and ignore the hangup.
# Seen: tmux, nohup, setsid
# --mps: same
#SBATCH --ntasks=2 --gres=gpu:1

setsid --wait cuda-app --hold 0.2 &
nohup cuda-app --hold 0.2 2>/dev/null
wait
