#!/bin/sh
# Local rank 0 of the step starts the MPS, the others wait for it.
# Seen: wrapper scripts of ALCF and CSCS
# --mps: 'its script names'
#SBATCH --ntasks=4 --gres=gpu:1

cat >wrapper.sh <<'END'
#!/bin/sh
export CUDA_MPS_PIPE_DIRECTORY=$PWD/pipe CUDA_MPS_LOG_DIRECTORY=$PWD/log
if [ "$SLURM_LOCALID" = 0 ]; then
    mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
    nvidia-cuda-mps-control -d
fi
until [ -S "$CUDA_MPS_PIPE_DIRECTORY/control" ]; do sleep 0.1; done
"$@"
code=$?
touch "done.$SLURM_LOCALID"
if [ "$SLURM_LOCALID" = 0 ]; then
    until [ -e done.1 ] && [ -e done.2 ] && [ -e done.3 ]; do sleep 0.1; done
    echo quit | nvidia-cuda-mps-control
fi
exit $code
END
chmod +x wrapper.sh
srun ./wrapper.sh cuda-app --hold 0.3
