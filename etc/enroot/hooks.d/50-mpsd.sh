#!/bin/sh
# mpsd: shows a container its job's MPS. enroot runs this before a container starts, as the user who starts it, with the
# job's environment. Without a job that has MPS nothing is done.
[ -n "${MPSD_JOB-}" ] && [ -n "${CUDA_MPS_PIPE_DIRECTORY-}" ] || exit 0
# With several daemons each task has a directory of its own, and pyxis starts one container for all tasks of a node.
job=${CUDA_MPS_PIPE_DIRECTORY%/*}
[ -d "$job" ] || exit 0
options=none\ x-create=dir,bind,rw,nosuid,nodev,noexec,private
printf '%s %s %s\n' "$job" "$job" "$options" >>"$ENROOT_MOUNTS" || exit 1
# What srun runs before each task of such a job, from inside of pyxis' container.
prolog=/usr/libexec/mpsd/mps-task-prolog
if [ -e "$prolog" ]; then
    printf '%s %s none x-create=file,bind,ro,nosuid,nodev,private\n' "$prolog" "$prolog" >>"$ENROOT_MOUNTS" || exit 1
fi
# pyxis lets a container's variables win over each task's own, and hands those on itself. It keeps the first task's rank
# from enroot; every other process of a Slurm job has one.
[ -z "${SLURM_JOB_ID-}" ] || [ -n "${SLURM_LOCALID-}" ] || exit 0
for name in MPSD_JOB CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY CUDA_VISIBLE_DEVICES \
    CUDA_MPS_ACTIVE_THREAD_PERCENTAGE CUDA_MPS_PINNED_DEVICE_MEM_LIMIT CUDA_MPS_SM_PARTITION; do
    eval "value=\${$name-}"
    [ -z "$value" ] || printf '%s=%s\n' "$name" "$value" >>"$ENROOT_ENVIRON" || exit 1
done
