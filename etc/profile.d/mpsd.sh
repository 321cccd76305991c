# The environment of a PBS job's own MPS. Outside a job, and in a job without MPS, this starts no program, unless the job has
# the variables of another job's MPS ('qsub -V' inside a job).
# The directory of a job id of more than 40 bytes has a shorter name, which mpsctl knows.
if [ -n "${PBS_JOBID-}" ] && [ -x /usr/bin/mpsctl ]; then
    if [ -d "/run/mpsd/jobs/$PBS_JOBID" ] || [ -n "${MPSD_JOB+set}" ] || { [ "${#PBS_JOBID}" -gt 40 ] && [ -d /run/mpsd/jobs ]; }; then
        # Nothing is evaluated when mpsctl fails: its line on standard error says why.
        if mpsd_environment="$(/usr/bin/mpsctl env --shell sh --main)"; then
            eval "$mpsd_environment"
        fi
        unset mpsd_environment
    fi
fi
