# A shell that ssh put into a Slurm job (pam_slurm_adopt) has no variable of that job: tell its user how to attach it to
# the job's MPS. Any other shell is left alone, and no program is started.
case $-:${SLURM_JOB_ID-} in
*i*:)
    while IFS= read -r mpsd_job; do
        case $mpsd_job in
        */job_[0-9]*)
            mpsd_job=${mpsd_job##*/job_}
            mpsd_job=${mpsd_job%%/*}
            if [ -d "/run/mpsd/jobs/$mpsd_job" ]; then
                echo "job $mpsd_job has an MPS, but this shell is not attached: eval \"\$(mpsctl env --job $mpsd_job)\"" >&2
            fi
            break
            ;;
        esac
    done </proc/self/cgroup
    unset mpsd_job
    ;;
esac
