#!/bin/sh
# The same with set -e: any failing command of MPS ends the job.
# Seen: job scripts that begin with set -euo pipefail
# --mps: 'its script names'
#SBATCH --ntasks=4 --gres=gpu:1

set -eu
export CUDA_MPS_PIPE_DIRECTORY=$PWD/pipe CUDA_MPS_LOG_DIRECTORY=$PWD/log
mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
nvidia-cuda-mps-control -d
cuda-app --hold 0.2 &
cuda-app --hold 0.2
wait
echo quit | nvidia-cuda-mps-control
echo finished
