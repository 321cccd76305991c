#!/bin/sh
# The script never names the daemon: a tool of the group starts it.
# Seen: Parsl and WESTPA: the worker or a module has the start
# --mps: 'its script names'
#SBATCH --ntasks=2 --gres=gpu:1

tool=$(printf 'nvidia-cuda-%s-control' mps)
export CUDA_MPS_PIPE_DIRECTORY=$PWD/pipe CUDA_MPS_LOG_DIRECTORY=$PWD/log
mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
$tool -d
cuda-app --hold 0.2 &
cuda-app --hold 0.2
wait
echo quit | $tool
