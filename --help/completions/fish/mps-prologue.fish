complete -c mps-prologue -l scheduler -d 'The batch system; without it, found from the number of arguments and the environment' -r -f -a "slurm\t'Slurm, through the plugin'
torque\t'Torque'
openpbs\t'OpenPBS or PBS Professional'"
complete -c mps-prologue -l request -d 'The request, in the words of the account tokens (Slurm\'s plugin)' -r -f -a "MPS=per-node\t''
MPS=per-gpu\t''
MPS=off\t''
MPS_THREADS=auto\t''
MPS_MEM=auto\t''
MPS_REPLICAS=\t''
MPS_PRIORITY=normal\t''
MPS_PRIORITY=below-normal\t''
MPS_BIND=auto\t''
MPS_BIND=block\t''
MPS_BIND=cyclic\t''
MPS_BIND=closest\t''
MPS_BIND=none\t''
MPS_VISIBLE=auto\t''
MPS_VISIBLE=uuid\t''
MPS_VISIBLE=ordinal\t''
MPS_VISIBLE=keep\t''
MPS_SMS=\t''
MPS_VERIFY=on\t''
MPS_VERIFY=off\t''
MPS_REPORT=on\t''
MPS_REPORT=off\t''"
complete -c mps-prologue -l account -d 'The job\'s account string (OpenPBS\'s hook)' -r
complete -c mps-prologue -l resource -d 'The job\'s string resource `mps` (OpenPBS\'s hook)' -r
complete -c mps-prologue -l gpus -d 'The job\'s GPUs on this node, UUIDs or indexes with commas' -r
complete -c mps-prologue -l select -d 'OpenPBS\'s Resource_List.select' -r
complete -c mps-prologue -l place -d 'OpenPBS\'s Resource_List.place' -r
complete -c mps-prologue -l vnodes -d 'OpenPBS\'s exec_vnode' -r
complete -c mps-prologue -l step -d 'A daemon for this step of the job alone (Slurm); the compute mode stays' -r
complete -c mps-prologue -l config -d 'Configuration; a file of root\'s' -r -F
complete -c mps-prologue -l wait -d 'When to return: the daemon is proved ready, or it is being started. A caller of \'announced\' may stop waiting before' -r -f -a "ready\t'Until the server is proved ready'
started\t'Until it is being started; a process of its own proves it, and the record tells'
announced\t'Until the server is proved ready, or the caller goes on without it: the record tells from the first moment'"
complete -c mps-prologue -l sister -d 'This is not the job\'s first node'
complete -c mps-prologue -l record -d 'Leave a refusal or a failure on the node for the job\'s tasks to read'
complete -c mps-prologue -l gone -d 'Torque: a directory is here of a job that the mom does not have. It is taken down first, also for a job that did not ask'
complete -c mps-prologue -s h -l help -d 'Print help (see more with \'--help\')'
complete -c mps-prologue -s V -l version -d 'Print version'
