#!/bin/sh
# A launcher starts workers by ssh, even on its own node.
# Seen: launchers of deep learning: pdsh, ssh
# --mps: error 46
#SBATCH --ntasks=2 --gres=gpu:1

for worker in 1 2; do ssh localhost cuda-app --hold 0.3 & done
wait
