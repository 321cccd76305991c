#!/bin/sh
# The wrapper gives its MPS the numbers of SLURM_JOB_GPUS.
# Seen: wrapper scripts that start the daemon with CUDA_VISIBLE_DEVICES=$SLURM_JOB_GPUS
# --mps: 'its script names'
#SBATCH --ntasks=4 --gres=gpu:2

cat >wrapper.sh <<'END'
#!/bin/sh
export CUDA_MPS_PIPE_DIRECTORY=$PWD/pipe CUDA_MPS_LOG_DIRECTORY=$PWD/log
if [ "$SLURM_LOCALID" = 0 ]; then
    mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
    CUDA_VISIBLE_DEVICES=$SLURM_JOB_GPUS nvidia-cuda-mps-control -d
fi
until [ -S "$CUDA_MPS_PIPE_DIRECTORY/control" ]; do sleep 0.1; done
unset CUDA_VISIBLE_DEVICES
exec "$@"
END
chmod +x wrapper.sh
srun ./wrapper.sh cuda-app --hold 0.3
