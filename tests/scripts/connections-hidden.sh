#!/bin/sh
# A tool of the group sets the connections of eight tasks, and the script never names them.
# Seen: environments of Megatron and Kaldi
# --mps: '_MAX_CONNECTIONS=32'
#SBATCH --ntasks=8 --gres=gpu:1

export "$(printf 'CUDA_%s_MAX_CONNECTIONS' DEVICE)=32"
srun -n8 cuda-app --hold 0.5
