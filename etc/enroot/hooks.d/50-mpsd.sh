#!/bin/sh
# mpsd: shows a container its job's MPS. enroot runs this before a container starts, as the user who starts it, with the
# job's environment. It does nothing in a job without MPS. A container that would miss its job's MPS does not start.
[ -n "${MPSD_JOB-}" ] && [ -n "${CUDA_MPS_PIPE_DIRECTORY-}" ] || exit 0
mps=${CUDA_MPS_PIPE_DIRECTORY%/*}
jobs=${mps%/*/*}/jobs
own=${SLURM_JOB_ID:-${PBS_JOBID-}}
# In a heterogeneous job every task has the first component's id; the ids of the other components follow it.
case ${SLURM_HET_SIZE:-x}${own:-x}$MPSD_JOB in
*[!0-9]*) ;;
*) [ "$MPSD_JOB" -lt "$own" ] || [ "$MPSD_JOB" -ge $((own + SLURM_HET_SIZE)) ] || own=$MPSD_JOB ;;
esac
refuse() {
    echo "mpsd: job $own: $1, and the container would run outside of the job's MPS; allowed: $2" >&2
    exit 1
}
case $MPSD_JOB in
"$own" | "$own".*)
    [ -d "$mps" ] || refuse "'$mps', where the MPS of job $MPSD_JOB is, is not there" "a job whose MPS runs"
    ;;
*)
    # The variables are another job's (by 'sbatch' or 'qsub -V'), or none says which job this is.
    [ -z "$own" ] || [ ! -d "$jobs/$own" ] || refuse "the variables here are those of job $MPSD_JOB" \
        "'eval \"\$(mpsctl env)\"' before it"
    [ -z "$own" ] && [ -d "$mps" ] || exit 0
    ;;
esac
# rbind: each of the user's directories below it is a mount.
options=none\ x-create=dir,rbind,rw,nosuid,nodev,noexec,rprivate
# pyxis starts one container for all tasks of a node, and each task may have another daemon. A job
# that shares its MPS has a directory for each GPU, and its record names them.
named=$(sed -n 's|^ *"pipe": "\(.*\)/pipe[^/]*",*$|\1|p' "$jobs/$MPSD_JOB/record" 2>/dev/null)
for directory in $(printf '%s\n' "$mps" $named | sort -u); do
    printf '%s %s %s\n' "$directory" "$directory" "$options" >>"$ENROOT_MOUNTS" || exit 1
done
# srun runs this before each task of such a job, inside pyxis' container.
prolog=/usr/libexec/mpsd/mps-task-prolog
if [ -e "$prolog" ]; then
    printf '%s %s none x-create=file,bind,ro,nosuid,nodev,private\n' "$prolog" "$prolog" >>"$ENROOT_MOUNTS" || exit 1
fi
# pyxis passes each task's variables on by itself, and a container's would replace them. pyxis sets PYXIS_VERSION; before
# 0.21 only the names of its containers tell.
[ -z "${PYXIS_VERSION-}" ] || exit 0
case ${ENROOT_ROOTFS##*/} in pyxis_*) exit 0 ;; esac
# 'mpsctl env --container enroot' has set them for this process; those of its shell are less exact.
! grep -q '^MPSD_JOB=' "$ENROOT_ENVIRON" || exit 0
for name in MPSD_JOB CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY CUDA_VISIBLE_DEVICES \
    CUDA_MPS_ACTIVE_THREAD_PERCENTAGE CUDA_MPS_PINNED_DEVICE_MEM_LIMIT JAX_LOCAL_DEVICE_IDS; do
    eval "value=\${$name-}"
    [ -z "$value" ] || printf '%s=%s\n' "$name" "$value" >>"$ENROOT_ENVIRON" || exit 1
done
