complete -c mps-probe -l gpu -d 'Look at this visible device only (index as CUDA counts)' -r
complete -c mps-probe -l expect-sms -d 'Fail unless exactly N multiprocessors are visible' -r
complete -c mps-probe -l expect-mem -d 'Fail unless the memory limit is MIB: at most that and at least 256 MiB less can be allocated' -r
complete -c mps-probe -l alloc -d 'Find out how much can be allocated, in steps of 64 MiB up to the cap; it is freed again' -r
complete -c mps-probe -l hold -d 'After the report keep the contexts for this long, then check the memory again' -r
complete -c mps-probe -l deadline-s -d 'Give up when CUDA has not answered after this long (the time of --hold is added)' -r
complete -c mps-probe -l nvml -d 'NVML\'s library, if the loader does not find it' -r
complete -c mps-probe -l json -d 'One JSON object on one line instead of the table'
complete -c mps-probe -l require-mps -d 'Fail unless every context goes through MPS'
complete -c mps-probe -s h -l help -d 'Print help'
complete -c mps-probe -s V -l version -d 'Print version'
