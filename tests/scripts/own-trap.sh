#!/bin/sh
# A trap quits the MPS and removes its directories.
# Seen: entry points of images, launch scripts of inference servers
# --mps: 'its script names'
#SBATCH --ntasks=4 --gres=gpu:1

export CUDA_MPS_PIPE_DIRECTORY=$PWD/pipe CUDA_MPS_LOG_DIRECTORY=$PWD/log
mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
cleanup() {
    code=$?
    trap - EXIT TERM
    echo quit | nvidia-cuda-mps-control
    rm -rf "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
    echo "cleaned up after $code"
    exit $code
}
trap cleanup EXIT TERM
nvidia-cuda-mps-control -d
cuda-app --hold 0.2 &
cuda-app --hold 0.2
wait
exit 3
