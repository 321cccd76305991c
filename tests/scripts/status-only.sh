#!/bin/sh
# Asks the daemon of the node for its servers.
# Seen: health checks at the start of a job
# --mps: 'its script names'
#SBATCH --ntasks=2 --gres=gpu:1

if echo get_server_list | nvidia-cuda-mps-control >/dev/null 2>&1; then echo MPS; else echo "no MPS"; fi
cuda-app
