# The environment of a PBS job's own MPS. Outside a job, and in a job without MPS, this starts no program, unless the job has
# the variables of another job's MPS ('qsub -V' inside a job).
# The directory of a job id of more than 40 bytes has a shorter name, which mpsctl knows.
if ( $?PBS_JOBID ) then
    if ( -x /usr/bin/mpsctl && ( -d "/run/mpsd/jobs/$PBS_JOBID" || $?MPSD_JOB || ( $%PBS_JOBID > 40 && -d /run/mpsd/jobs ) ) ) then
        # When mpsctl fails this evaluates 'false': its line on standard error says why.
        eval `/usr/bin/mpsctl env --shell csh --main`
    endif
endif
