#!/bin/sh
# Programs with an empty environment.
# Seen: env -i, sudo, clean shells of test harnesses
# --mps: error 46
#SBATCH --ntasks=2 --gres=gpu:1

env -i cuda="$(command -v cuda-app)" sh -c '"$cuda" --hold 0.3' &
env -i cuda="$(command -v cuda-app)" sh -c '"$cuda" --hold 0.3'
wait
