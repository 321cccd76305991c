complete -c mpsd -l set -d 'Ask the job\'s mpsd to set these limits, and report its answer on descriptor 4 (used by \'mpsctl set\')' -r
complete -c mpsd -l nvml -d 'Answer questions about the node\'s GPUs through this NVML library, on descriptor 3 (used by root\'s programs)' -r
complete -c mpsd -l note -d 'Append the line on standard input to this file, as the job\'s user (used by mps-prologue)' -r -F
complete -c mpsd -l stop -d 'Ask the job\'s control daemons to end, then end (used by the teardown)'
complete -c mpsd -l look -d 'Ask the job\'s control daemons what they say of their clients, and report it on descriptor 4 (used by \'mpsctl status\')'
complete -c mpsd -s h -l help -d 'Print help (see more with \'--help\')'
complete -c mpsd -s V -l version -d 'Print version'
