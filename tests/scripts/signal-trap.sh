#!/bin/sh
# The script answers a signal: it checkpoints and ends.
# Seen: --signal=B:USR1@60 and a trap
# --mps: same
#SBATCH --ntasks=2 --gres=gpu:1

trap 'echo checkpoint; kill $child; exit 4' USR1
(sleep 0.7; kill -USR1 $$) &
cuda-app --hold 20 >/dev/null &
child=$!
wait $child
