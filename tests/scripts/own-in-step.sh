#!/bin/sh
# A single task starts the MPS and its programs.
# Seen: pilot jobs: one launcher for each node
# --mps: 'its script names'
#SBATCH --ntasks=1 --gres=gpu:1

cat >launcher.sh <<'END'
export CUDA_MPS_PIPE_DIRECTORY=$PWD/pipe CUDA_MPS_LOG_DIRECTORY=$PWD/log
mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
nvidia-cuda-mps-control -d
for run in 1 2 3; do cuda-app --hold 0.2 & done
wait
echo quit | nvidia-cuda-mps-control
END
srun sh launcher.sh
