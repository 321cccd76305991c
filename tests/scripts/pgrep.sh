#!/bin/sh
# Starts its own daemon unless the node has one.
# Seen: pgrep -f nvidia-cuda-mps-control || nvidia-cuda-mps-control -d
# --mps: 'its script names'
#SBATCH --ntasks=2 --gres=gpu:1

# Only where the job sees the processes of its node alone: PBS
export CUDA_MPS_PIPE_DIRECTORY=$PWD/pipe CUDA_MPS_LOG_DIRECTORY=$PWD/log
mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
pgrep -x nvidia-cuda-mps >/dev/null || nvidia-cuda-mps-control -d
cuda-app --hold 0.2 &
cuda-app --hold 0.2
wait
echo quit | nvidia-cuda-mps-control >/dev/null 2>&1
echo "$PBS_JOBID" | wc -l
