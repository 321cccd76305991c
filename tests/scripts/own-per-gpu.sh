#!/bin/sh
# One MPS for each GPU, with directories by the number of the GPU.
# Seen: job scripts for several GPUs: a loop over the devices
# --mps: 'its script names'
#SBATCH --ntasks=4 --gres=gpu:2

IFS=,
for gpu in $CUDA_VISIBLE_DEVICES; do
    export CUDA_MPS_PIPE_DIRECTORY=$PWD/pipe-$gpu CUDA_MPS_LOG_DIRECTORY=$PWD/log-$gpu
    mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
    CUDA_VISIBLE_DEVICES=$gpu nvidia-cuda-mps-control -d
    for run in 1 2; do CUDA_VISIBLE_DEVICES=0 cuda-app --hold 0.3 & done
done
wait
for gpu in $CUDA_VISIBLE_DEVICES; do
    echo quit | CUDA_MPS_PIPE_DIRECTORY=$PWD/pipe-$gpu nvidia-cuda-mps-control
done
