#!/bin/sh
# One rank is killed, another starts afterwards.
# Seen: elastic launchers
# --mps: same
#SBATCH --ntasks=2 --gres=gpu:1

cuda-app --busy --hold 20 >/dev/null &
victim=$!
sleep 1
kill -KILL $victim
{ wait $victim; } 2>/dev/null
echo "ended with $?"
cuda-app
cuda-app
