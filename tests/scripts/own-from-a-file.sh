#!/bin/sh
# The start of the MPS stands in a file that the script sources.
# Seen: examples of a center: . ./enable_mps.sh
# --mps: 'its script names'
#SBATCH --ntasks=2 --gres=gpu:1

cat >enable_mps.sh <<'END'
export CUDA_MPS_PIPE_DIRECTORY=$PWD/pipe CUDA_MPS_LOG_DIRECTORY=$PWD/log
mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
nvidia-cuda-mps-control -d
END
. ./enable_mps.sh
cuda-app --hold 0.2 &
cuda-app --hold 0.2
wait
echo quit | nvidia-cuda-mps-control
