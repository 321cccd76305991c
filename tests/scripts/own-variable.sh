#!/bin/sh
# A tool of the group sets the user's own pipe directory, which the script never names.
# Seen: module files of centers
# --mps: any: its tasks have the directory of the job
#SBATCH --ntasks=2 --gres=gpu:1

export "$(printf 'CUDA_%s_PIPE_DIRECTORY' MPS)=$PWD/pipe"
# A script without mpirun has no MPS.
srun -n2 sh -c '[ "$(env | grep _PIPE_ | cut -d= -f2)" = "$PWD/pipe" ] && echo its own || echo another'
