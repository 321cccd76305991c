#!/bin/sh
# mpirun with a wrapper that starts the MPS on local rank 0.
# Seen: OMPI_COMM_WORLD_LOCAL_RANK in wrappers
# --mps: 'its script names'
#SBATCH --ntasks=2 --gres=gpu:1

cat >wrapper.sh <<'END'
export CUDA_MPS_PIPE_DIRECTORY=$PWD/pipe CUDA_MPS_LOG_DIRECTORY=$PWD/log
mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
[ "$OMPI_COMM_WORLD_LOCAL_RANK" != 0 ] || nvidia-cuda-mps-control -d
until [ -S "$CUDA_MPS_PIPE_DIRECTORY/control" ]; do sleep 0.1; done
exec cuda-app --hold 0.3
END
mpirun -n 2 sh wrapper.sh
echo quit | CUDA_MPS_PIPE_DIRECTORY=$PWD/pipe nvidia-cuda-mps-control
