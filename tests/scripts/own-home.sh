#!/bin/sh
# Directories below the home directory, by node and GPU.
# Seen: a submission library for molecular dynamics
# --mps: 'its script names'
#SBATCH --ntasks=2 --gres=gpu:1

export CUDA_MPS_PIPE_DIRECTORY=$HOME/.mps-$SLURM_JOB_ID-$CUDA_VISIBLE_DEVICES
export CUDA_MPS_LOG_DIRECTORY=$CUDA_MPS_PIPE_DIRECTORY.log
mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
nvidia-cuda-mps-control -d
cuda-app --hold 0.2 &
cuda-app --hold 0.2
wait
echo quit | nvidia-cuda-mps-control
rm -rf "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
