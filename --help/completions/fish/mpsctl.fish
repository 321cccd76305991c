# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_mpsctl_global_optspecs
    string join \n config= h/help V/version
end

function __fish_mpsctl_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_mpsctl_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_mpsctl_using_subcommand
    set -l cmd (__fish_mpsctl_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c mpsctl -n "__fish_mpsctl_needs_command" -l config -d 'The configuration' -r -F
complete -c mpsctl -n "__fish_mpsctl_needs_command" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c mpsctl -n "__fish_mpsctl_needs_command" -s V -l version -d 'Print version'
complete -c mpsctl -n "__fish_mpsctl_needs_command" -f -a "env" -d 'Print the variables that attach a shell to its job\'s MPS: eval "$(mpsctl env)"'
complete -c mpsctl -n "__fish_mpsctl_needs_command" -f -a "exec" -d 'Run a program attached to the job\'s MPS, with its rank\'s limits'
complete -c mpsctl -n "__fish_mpsctl_needs_command" -f -a "status" -d 'Show a job\'s MPS as it is now: daemons, limits, and each GPU with its clients'
complete -c mpsctl -n "__fish_mpsctl_needs_command" -f -a "set" -d 'Give the clients of a running job other limits, within the site\'s ceilings'
complete -c mpsctl -n "__fish_mpsctl_needs_command" -f -a "sweep" -d 'Run 1, 2, 4, 8 copies of a program with the job\'s MPS and without, and say what does best'
complete -c mpsctl -n "__fish_mpsctl_needs_command" -f -a "report" -d 'Print what root wrote down of a job that has ended on this node'
complete -c mpsctl -n "__fish_mpsctl_needs_command" -f -a "selftest" -d 'Try a job with MPS through this site\'s scheduler, as an ordinary user, and say what it got'
complete -c mpsctl -n "__fish_mpsctl_needs_command" -f -a "metrics" -d 'Print numbers about MPS on this node for Prometheus (root)'
complete -c mpsctl -n "__fish_mpsctl_needs_command" -f -a "undrain" -d 'Lift our own drain of this node after a clean recheck (root)'
complete -c mpsctl -n "__fish_mpsctl_needs_command" -f -a "idle" -d 'Say whether jobs with MPS run on this node, and wait for their end (root)'
complete -c mpsctl -n "__fish_mpsctl_needs_command" -f -a "doctor" -d 'Say what keeps this host from giving jobs an MPS, one line each, with what to do'
complete -c mpsctl -n "__fish_mpsctl_needs_command" -f -a "explain" -d 'Say in words what an error of CUDA\'s under MPS, or a log, tells: cause, remedy, source'
complete -c mpsctl -n "__fish_mpsctl_needs_command" -f -a "support-bundle" -d 'Pack what a report of a problem needs to say of this node into one file of root\'s (root)'
complete -c mpsctl -n "__fish_mpsctl_needs_command" -f -a "advertise" -d 'Print the lines that make this node offer shares of its GPUs'
complete -c mpsctl -n "__fish_mpsctl_needs_command" -f -a "config" -d 'The configuration'
complete -c mpsctl -n "__fish_mpsctl_needs_command" -f -a "pbs" -d 'The verbs of `mpsctl pbs`'
complete -c mpsctl -n "__fish_mpsctl_needs_command" -f -a "plan" -d 'Print what root would do here for a job, and do nothing of it'
complete -c mpsctl -n "__fish_mpsctl_needs_command" -f -a "reconcile" -d 'Take down what jobs left that their scheduler no longer has here, and deliver or lift our own drains (root)'
complete -c mpsctl -n "__fish_mpsctl_needs_command" -f -a "slurm" -d 'The verbs of `mpsctl slurm`'
complete -c mpsctl -n "__fish_mpsctl_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand env" -l job -d 'The job; from the scheduler\'s variables if not given' -r
complete -c mpsctl -n "__fish_mpsctl_using_subcommand env" -l shell -d 'For whom to print' -r -f -a "sh\t'sh, bash, zsh, ksh'
csh\t'csh, tcsh'
fish\t'fish'
json\t'One object: a value for each variable, null for one to remove'"
complete -c mpsctl -n "__fish_mpsctl_using_subcommand env" -l container -d 'Print the options that attach a container, for its runtime: podman run $(mpsctl env --container podman) IMAGE' -r -f -a "apptainer\t'apptainer exec, singularity exec'
enroot\t'enroot start'
podman\t'podman run'
docker\t'docker run: with the job\'s user, since the daemon serves nobody else'"
complete -c mpsctl -n "__fish_mpsctl_using_subcommand env" -l config -d 'The configuration' -r -F
complete -c mpsctl -n "__fish_mpsctl_using_subcommand env" -l main -d 'This is the job\'s main shell, which has no rank: it gets the lowest limit of a list, and no GPU\'s own daemon'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand env" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand exec" -l job -d 'The job; from the scheduler\'s variables if not given' -r
complete -c mpsctl -n "__fish_mpsctl_using_subcommand exec" -l config -d 'The configuration' -r -F
complete -c mpsctl -n "__fish_mpsctl_using_subcommand exec" -l starter -d 'Torque\'s $job_starter: a job without MPS runs as it is, a lone shell becomes a login shell'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand exec" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand status" -l config -d 'The configuration' -r -F
complete -c mpsctl -n "__fish_mpsctl_using_subcommand status" -l json -d 'One object instead of text'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand status" -l watch -d 'Show it anew every two seconds, until \'q\' or Ctrl-C'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand status" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand set" -l threads -d 'Active thread percentage of each client that connects from now on' -r
complete -c mpsctl -n "__fish_mpsctl_using_subcommand set" -l mem -d 'Pinned memory limit of each client that connects from now on: 4G, or by GPU 0=4G:1=2G' -r
complete -c mpsctl -n "__fish_mpsctl_using_subcommand set" -l client -d 'Not possible, and said so' -r
complete -c mpsctl -n "__fish_mpsctl_using_subcommand set" -l config -d 'The configuration' -r -F
complete -c mpsctl -n "__fish_mpsctl_using_subcommand set" -l json -d 'One object instead of text'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand set" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand sweep" -l job -d 'The job; from the scheduler\'s variables if not given' -r
complete -c mpsctl -n "__fish_mpsctl_using_subcommand sweep" -l clients -d 'How many copies of the command at once, on all of the job\'s GPUs of this node together' -r
complete -c mpsctl -n "__fish_mpsctl_using_subcommand sweep" -l threads -d 'Thread percentage of each client: none, auto (200/n), 100/n, a number; n: clients on a GPU' -r
complete -c mpsctl -n "__fish_mpsctl_using_subcommand sweep" -l seconds -d 'End each run after this long, and start a copy that ended before again, if there is no --metric; otherwise a run lasts until all copies have ended' -r
complete -c mpsctl -n "__fish_mpsctl_using_subcommand sweep" -l metric -d 'The figure that each copy writes: the first group of this regular expression, or the number beside its match; the last match counts. Without it completions are counted' -r
complete -c mpsctl -n "__fish_mpsctl_using_subcommand sweep" -l repeat -d 'Measure everything so often, and take the medians' -r
complete -c mpsctl -n "__fish_mpsctl_using_subcommand sweep" -l svg -d 'Write the plot to FILE, as SVG' -r -F
complete -c mpsctl -n "__fish_mpsctl_using_subcommand sweep" -l config -d 'The configuration' -r -F
complete -c mpsctl -n "__fish_mpsctl_using_subcommand sweep" -l only-mps -d 'Leave the runs without MPS out'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand sweep" -l json -d 'One JSON object instead of the table'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand sweep" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand report" -l since -d 'Only jobs that began so long ago or later: 90m, 12h, 7d' -r
complete -c mpsctl -n "__fish_mpsctl_using_subcommand report" -l node -d 'The node\'s name in the scheduler; this host\'s if not given' -r
complete -c mpsctl -n "__fish_mpsctl_using_subcommand report" -l config -d 'The configuration' -r -F
complete -c mpsctl -n "__fish_mpsctl_using_subcommand report" -l json -d 'The reports themselves, an object a line'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand report" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand selftest" -l scheduler -d 'The scheduler; the one whose srun or qsub is in PATH if not given' -r -f -a "slurm\t'Slurm, through the plugin'
torque\t'Torque'
openpbs\t'OpenPBS or PBS Professional'"
complete -c mpsctl -n "__fish_mpsctl_using_subcommand selftest" -l wait -d 'Longest that the job may take, with its time in the queue; then it is cancelled' -r
complete -c mpsctl -n "__fish_mpsctl_using_subcommand selftest" -l config -d 'The configuration' -r -F
complete -c mpsctl -n "__fish_mpsctl_using_subcommand selftest" -l json -d 'One JSON object: the worst status, and the status and text of each line'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand selftest" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand metrics" -l textfile -d 'Write them into DIR/mpsd.prom instead, whole, for the textfile collector of node_exporter' -r -F
complete -c mpsctl -n "__fish_mpsctl_using_subcommand metrics" -l node -d 'The node\'s name in the scheduler; this host\'s if not given' -r
complete -c mpsctl -n "__fish_mpsctl_using_subcommand metrics" -l config -d 'The configuration' -r -F
complete -c mpsctl -n "__fish_mpsctl_using_subcommand metrics" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand undrain" -l node -d 'The node\'s name in the scheduler; this host\'s if not given' -r
complete -c mpsctl -n "__fish_mpsctl_using_subcommand undrain" -l config -d 'The configuration' -r -F
complete -c mpsctl -n "__fish_mpsctl_using_subcommand undrain" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand idle" -l wait -d 'Wait so long for the jobs with MPS that run on this node' -r
complete -c mpsctl -n "__fish_mpsctl_using_subcommand idle" -l config -d 'The configuration' -r -F
complete -c mpsctl -n "__fish_mpsctl_using_subcommand idle" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand doctor" -l node -d 'The node\'s name in the scheduler; this host\'s if not given' -r
complete -c mpsctl -n "__fish_mpsctl_using_subcommand doctor" -l config -d 'The configuration' -r -F
complete -c mpsctl -n "__fish_mpsctl_using_subcommand doctor" -l problems -d 'Print only what is not OK'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand doctor" -l json -d 'One JSON object: the worst status, and the status and text of each finding'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand doctor" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand explain" -l config -d 'The configuration' -r -F
complete -c mpsctl -n "__fish_mpsctl_using_subcommand explain" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand support-bundle" -l out -d 'The file to write, which must not be there; mpsd-support-HOST-SECONDS.tar if not given' -r -F
complete -c mpsctl -n "__fish_mpsctl_using_subcommand support-bundle" -l config -d 'The configuration' -r -F
complete -c mpsctl -n "__fish_mpsctl_using_subcommand support-bundle" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand advertise" -l node -d 'This node\'s name in the scheduler; the host\'s if not given' -r
complete -c mpsctl -n "__fish_mpsctl_using_subcommand advertise" -l config -d 'The configuration' -r -F
complete -c mpsctl -n "__fish_mpsctl_using_subcommand advertise" -l json -d 'One JSON object'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand advertise" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand config; and not __fish_seen_subcommand_from check show help" -l config -d 'The configuration' -r -F
complete -c mpsctl -n "__fish_mpsctl_using_subcommand config; and not __fish_seen_subcommand_from check show help" -s h -l help -d 'Print help'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand config; and not __fish_seen_subcommand_from check show help" -f -a "check" -d 'Check a draft of the file, whosever it is, before it is put in place; without FILE the one in force'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand config; and not __fish_seen_subcommand_from check show help" -f -a "show" -d 'Check the file, and print every key with its value in force on a node and the line it comes from'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand config; and not __fish_seen_subcommand_from check show help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand config; and __fish_seen_subcommand_from check" -l config -d 'The configuration' -r -F
complete -c mpsctl -n "__fish_mpsctl_using_subcommand config; and __fish_seen_subcommand_from check" -l json -d 'One JSON object'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand config; and __fish_seen_subcommand_from check" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand config; and __fish_seen_subcommand_from show" -l node -d 'The node\'s name in the scheduler; this host if not given' -r
complete -c mpsctl -n "__fish_mpsctl_using_subcommand config; and __fish_seen_subcommand_from show" -l product -d 'A GPU product of the node, as \'nvidia-smi -L\' prints it; may be given several times' -r
complete -c mpsctl -n "__fish_mpsctl_using_subcommand config; and __fish_seen_subcommand_from show" -l config -d 'The configuration' -r -F
complete -c mpsctl -n "__fish_mpsctl_using_subcommand config; and __fish_seen_subcommand_from show" -l json -d 'One JSON object'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand config; and __fish_seen_subcommand_from show" -s h -l help -d 'Print help'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand config; and __fish_seen_subcommand_from help" -f -a "check" -d 'Check a draft of the file, whosever it is, before it is put in place; without FILE the one in force'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand config; and __fish_seen_subcommand_from help" -f -a "show" -d 'Check the file, and print every key with its value in force on a node and the line it comes from'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand config; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand pbs; and not __fish_seen_subcommand_from install uninstall request check help" -l config -d 'The configuration' -r -F
complete -c mpsctl -n "__fish_mpsctl_using_subcommand pbs; and not __fish_seen_subcommand_from install uninstall request check help" -s h -l help -d 'Print help'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand pbs; and not __fish_seen_subcommand_from install uninstall request check help" -f -a "install" -d 'Put our scripts (Torque) or our hook (OpenPBS) in place; print what only an administrator can do'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand pbs; and not __fish_seen_subcommand_from install uninstall request check help" -f -a "uninstall" -d 'Remove what install put there, once no job with MPS runs on this node'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand pbs; and not __fish_seen_subcommand_from install uninstall request check help" -f -a "request" -d 'Read a request as the queuejob hook does: print it and the account without it, as JSON'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand pbs; and not __fish_seen_subcommand_from install uninstall request check help" -f -a "check" -d 'Say what works, what could be better, and what is wrong, one line each'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand pbs; and not __fish_seen_subcommand_from install uninstall request check help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand pbs; and __fish_seen_subcommand_from install" -l scheduler -d 'The product; found by itself where only one is installed' -r -f -a "torque\t''
openpbs\t''"
complete -c mpsctl -n "__fish_mpsctl_using_subcommand pbs; and __fish_seen_subcommand_from install" -l config -d 'The configuration' -r -F
complete -c mpsctl -n "__fish_mpsctl_using_subcommand pbs; and __fish_seen_subcommand_from install" -l no-job-starter -d 'Torque: leave $job_starter as it is; tasks that TM starts then need \'mpsctl exec -- COMMAND\''
complete -c mpsctl -n "__fish_mpsctl_using_subcommand pbs; and __fish_seen_subcommand_from install" -l classic -d 'OpenPBS: the classic prologue and epilogue instead of the hook (first node of a job only)'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand pbs; and __fish_seen_subcommand_from install" -l queuejob -d 'OpenPBS: the hook also refuses at qsub and moves our words out of the account'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand pbs; and __fish_seen_subcommand_from install" -s h -l help -d 'Print help'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand pbs; and __fish_seen_subcommand_from uninstall" -l scheduler -d 'The product; found by itself where only one is installed' -r -f -a "torque\t''
openpbs\t''"
complete -c mpsctl -n "__fish_mpsctl_using_subcommand pbs; and __fish_seen_subcommand_from uninstall" -l wait -d 'Wait so long for the jobs with MPS that run on this node' -r
complete -c mpsctl -n "__fish_mpsctl_using_subcommand pbs; and __fish_seen_subcommand_from uninstall" -l config -d 'The configuration' -r -F
complete -c mpsctl -n "__fish_mpsctl_using_subcommand pbs; and __fish_seen_subcommand_from uninstall" -l force -d 'Remove it although jobs with MPS run here: mpsd-reconcile.timer takes their MPS down after them'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand pbs; and __fish_seen_subcommand_from uninstall" -s h -l help -d 'Print help'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand pbs; and __fish_seen_subcommand_from request" -l account -d 'The job\'s account' -r
complete -c mpsctl -n "__fish_mpsctl_using_subcommand pbs; and __fish_seen_subcommand_from request" -l resource -d 'The job\'s resource `mps`' -r
complete -c mpsctl -n "__fish_mpsctl_using_subcommand pbs; and __fish_seen_subcommand_from request" -l config -d 'The configuration' -r -F
complete -c mpsctl -n "__fish_mpsctl_using_subcommand pbs; and __fish_seen_subcommand_from request" -s h -l help -d 'Print help'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand pbs; and __fish_seen_subcommand_from check" -l scheduler -d 'The product; found by itself where only one is installed' -r -f -a "torque\t''
openpbs\t''"
complete -c mpsctl -n "__fish_mpsctl_using_subcommand pbs; and __fish_seen_subcommand_from check" -l config -d 'The configuration' -r -F
complete -c mpsctl -n "__fish_mpsctl_using_subcommand pbs; and __fish_seen_subcommand_from check" -l json -d 'One JSON object'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand pbs; and __fish_seen_subcommand_from check" -s h -l help -d 'Print help'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand pbs; and __fish_seen_subcommand_from help" -f -a "install" -d 'Put our scripts (Torque) or our hook (OpenPBS) in place; print what only an administrator can do'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand pbs; and __fish_seen_subcommand_from help" -f -a "uninstall" -d 'Remove what install put there, once no job with MPS runs on this node'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand pbs; and __fish_seen_subcommand_from help" -f -a "request" -d 'Read a request as the queuejob hook does: print it and the account without it, as JSON'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand pbs; and __fish_seen_subcommand_from help" -f -a "check" -d 'Say what works, what could be better, and what is wrong, one line each'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand pbs; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand plan" -l scheduler -d 'The batch system; without it, found from the number of arguments and the environment' -r -f -a "slurm\t'Slurm, through the plugin'
torque\t'Torque'
openpbs\t'OpenPBS or PBS Professional'"
complete -c mpsctl -n "__fish_mpsctl_using_subcommand plan" -l request -d 'The request, in the words of the account tokens (Slurm\'s plugin)' -r -f -a "MPS=per-node\t''
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
complete -c mpsctl -n "__fish_mpsctl_using_subcommand plan" -l account -d 'The job\'s account string (OpenPBS\'s hook)' -r
complete -c mpsctl -n "__fish_mpsctl_using_subcommand plan" -l resource -d 'The job\'s string resource `mps` (OpenPBS\'s hook)' -r
complete -c mpsctl -n "__fish_mpsctl_using_subcommand plan" -l gpus -d 'The job\'s GPUs on this node, UUIDs or indexes with commas' -r
complete -c mpsctl -n "__fish_mpsctl_using_subcommand plan" -l select -d 'OpenPBS\'s Resource_List.select' -r
complete -c mpsctl -n "__fish_mpsctl_using_subcommand plan" -l place -d 'OpenPBS\'s Resource_List.place' -r
complete -c mpsctl -n "__fish_mpsctl_using_subcommand plan" -l vnodes -d 'OpenPBS\'s exec_vnode' -r
complete -c mpsctl -n "__fish_mpsctl_using_subcommand plan" -l step -d 'A daemon for this step of the job alone (Slurm); the compute mode stays' -r
complete -c mpsctl -n "__fish_mpsctl_using_subcommand plan" -l user -d 'A job that no scheduler tells of: its user' -r
complete -c mpsctl -n "__fish_mpsctl_using_subcommand plan" -l job -d 'With --user: the job\'s id' -r
complete -c mpsctl -n "__fish_mpsctl_using_subcommand plan" -l tasks -d 'With --user: the job\'s tasks on this node' -r
complete -c mpsctl -n "__fish_mpsctl_using_subcommand plan" -l node -d 'The node\'s name in the scheduler; this host\'s if it does not say' -r
complete -c mpsctl -n "__fish_mpsctl_using_subcommand plan" -l config -d 'The configuration' -r -F
complete -c mpsctl -n "__fish_mpsctl_using_subcommand plan" -l sister -d 'This is not the job\'s first node'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand plan" -l exclusive -d 'With --user: the scheduler proves that this job alone holds its GPUs'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand plan" -l json -d 'One JSON object'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand plan" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand reconcile" -l node -d 'The node\'s name in the scheduler; this host\'s if not given' -r
complete -c mpsctl -n "__fish_mpsctl_using_subcommand reconcile" -l config -d 'The configuration' -r -F
complete -c mpsctl -n "__fish_mpsctl_using_subcommand reconcile" -l dry-run -d 'Say what stands and what would be done; touch nothing'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand reconcile" -l boot -d 'At boot: a job that began before the boot and has no process left is gone, whatever its scheduler says'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand reconcile" -l json -d 'One JSON object'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand reconcile" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand slurm; and not __fish_seen_subcommand_from enable disable check help" -l config -d 'The configuration' -r -F
complete -c mpsctl -n "__fish_mpsctl_using_subcommand slurm; and not __fish_seen_subcommand_from enable disable check help" -s h -l help -d 'Print help'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand slurm; and not __fish_seen_subcommand_from enable disable check help" -f -a "enable" -d 'Write our line for the plugin that fits the installed Slurm (root)'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand slurm; and not __fish_seen_subcommand_from enable disable check help" -f -a "disable" -d 'Remove what enable wrote, once no job with MPS runs on this node (root)'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand slurm; and not __fish_seen_subcommand_from enable disable check help" -f -a "check" -d 'Say what works, what could be better, and what is wrong, one line each'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand slurm; and not __fish_seen_subcommand_from enable disable check help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand slurm; and __fish_seen_subcommand_from enable" -l slurm-conf -d 'slurm.conf; if not given, from mpsd.toml, from SLURM_CONF, or that of the Slurm that runs here' -r -F
complete -c mpsctl -n "__fish_mpsctl_using_subcommand slurm; and __fish_seen_subcommand_from enable" -l exec -d 'Slurm\'s directory with bin and sbin; from mpsd.toml, or that of the Slurm that runs here if not given' -r -F
complete -c mpsctl -n "__fish_mpsctl_using_subcommand slurm; and __fish_seen_subcommand_from enable" -l node -d 'This node\'s name in Slurm; the host\'s if not given' -r
complete -c mpsctl -n "__fish_mpsctl_using_subcommand slurm; and __fish_seen_subcommand_from enable" -l plugins -d 'The directory with a plugin for each release' -r -F
complete -c mpsctl -n "__fish_mpsctl_using_subcommand slurm; and __fish_seen_subcommand_from enable" -l release -d 'The release, as in 23.11; what the installed Slurm says if not given' -r
complete -c mpsctl -n "__fish_mpsctl_using_subcommand slurm; and __fish_seen_subcommand_from enable" -l scope -d 'What the plugin does: job (jobs only), step (steps only), both' -r -f -a "both\t''
job\t''
step\t''"
complete -c mpsctl -n "__fish_mpsctl_using_subcommand slurm; and __fish_seen_subcommand_from enable" -l config -d 'The configuration' -r -F
complete -c mpsctl -n "__fish_mpsctl_using_subcommand slurm; and __fish_seen_subcommand_from enable" -l required -d 'Write \'required\' instead of \'optional\': where the plugin cannot be loaded, every srun fails'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand slurm; and __fish_seen_subcommand_from enable" -l refresh -d 'Only where enable wrote a line before: name the plugin for the Slurm that is here now (run by the packages)'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand slurm; and __fish_seen_subcommand_from enable" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand slurm; and __fish_seen_subcommand_from disable" -l slurm-conf -d 'slurm.conf; if not given, from mpsd.toml, from SLURM_CONF, or that of the Slurm that runs here' -r -F
complete -c mpsctl -n "__fish_mpsctl_using_subcommand slurm; and __fish_seen_subcommand_from disable" -l exec -d 'Slurm\'s directory with bin and sbin; from mpsd.toml, or that of the Slurm that runs here if not given' -r -F
complete -c mpsctl -n "__fish_mpsctl_using_subcommand slurm; and __fish_seen_subcommand_from disable" -l node -d 'This node\'s name in Slurm; the host\'s if not given' -r
complete -c mpsctl -n "__fish_mpsctl_using_subcommand slurm; and __fish_seen_subcommand_from disable" -l plugins -d 'The directory with a plugin for each release' -r -F
complete -c mpsctl -n "__fish_mpsctl_using_subcommand slurm; and __fish_seen_subcommand_from disable" -l wait -d 'Wait so long for the jobs with MPS that run on this node' -r
complete -c mpsctl -n "__fish_mpsctl_using_subcommand slurm; and __fish_seen_subcommand_from disable" -l config -d 'The configuration' -r -F
complete -c mpsctl -n "__fish_mpsctl_using_subcommand slurm; and __fish_seen_subcommand_from disable" -l force -d 'Remove it although jobs with MPS run here: mpsd-reconcile.timer takes their MPS down after them'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand slurm; and __fish_seen_subcommand_from disable" -s h -l help -d 'Print help'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand slurm; and __fish_seen_subcommand_from check" -l slurm-conf -d 'slurm.conf; if not given, from mpsd.toml, from SLURM_CONF, or that of the Slurm that runs here' -r -F
complete -c mpsctl -n "__fish_mpsctl_using_subcommand slurm; and __fish_seen_subcommand_from check" -l exec -d 'Slurm\'s directory with bin and sbin; from mpsd.toml, or that of the Slurm that runs here if not given' -r -F
complete -c mpsctl -n "__fish_mpsctl_using_subcommand slurm; and __fish_seen_subcommand_from check" -l node -d 'This node\'s name in Slurm; the host\'s if not given' -r
complete -c mpsctl -n "__fish_mpsctl_using_subcommand slurm; and __fish_seen_subcommand_from check" -l plugins -d 'The directory with a plugin for each release' -r -F
complete -c mpsctl -n "__fish_mpsctl_using_subcommand slurm; and __fish_seen_subcommand_from check" -l config -d 'The configuration' -r -F
complete -c mpsctl -n "__fish_mpsctl_using_subcommand slurm; and __fish_seen_subcommand_from check" -l json -d 'One JSON object'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand slurm; and __fish_seen_subcommand_from check" -s h -l help -d 'Print help'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand slurm; and __fish_seen_subcommand_from help" -f -a "enable" -d 'Write our line for the plugin that fits the installed Slurm (root)'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand slurm; and __fish_seen_subcommand_from help" -f -a "disable" -d 'Remove what enable wrote, once no job with MPS runs on this node (root)'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand slurm; and __fish_seen_subcommand_from help" -f -a "check" -d 'Say what works, what could be better, and what is wrong, one line each'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand slurm; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand help; and not __fish_seen_subcommand_from env exec status set sweep report selftest metrics undrain idle doctor explain support-bundle advertise config pbs plan reconcile slurm help" -f -a "env" -d 'Print the variables that attach a shell to its job\'s MPS: eval "$(mpsctl env)"'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand help; and not __fish_seen_subcommand_from env exec status set sweep report selftest metrics undrain idle doctor explain support-bundle advertise config pbs plan reconcile slurm help" -f -a "exec" -d 'Run a program attached to the job\'s MPS, with its rank\'s limits'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand help; and not __fish_seen_subcommand_from env exec status set sweep report selftest metrics undrain idle doctor explain support-bundle advertise config pbs plan reconcile slurm help" -f -a "status" -d 'Show a job\'s MPS as it is now: daemons, limits, and each GPU with its clients'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand help; and not __fish_seen_subcommand_from env exec status set sweep report selftest metrics undrain idle doctor explain support-bundle advertise config pbs plan reconcile slurm help" -f -a "set" -d 'Give the clients of a running job other limits, within the site\'s ceilings'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand help; and not __fish_seen_subcommand_from env exec status set sweep report selftest metrics undrain idle doctor explain support-bundle advertise config pbs plan reconcile slurm help" -f -a "sweep" -d 'Run 1, 2, 4, 8 copies of a program with the job\'s MPS and without, and say what does best'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand help; and not __fish_seen_subcommand_from env exec status set sweep report selftest metrics undrain idle doctor explain support-bundle advertise config pbs plan reconcile slurm help" -f -a "report" -d 'Print what root wrote down of a job that has ended on this node'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand help; and not __fish_seen_subcommand_from env exec status set sweep report selftest metrics undrain idle doctor explain support-bundle advertise config pbs plan reconcile slurm help" -f -a "selftest" -d 'Try a job with MPS through this site\'s scheduler, as an ordinary user, and say what it got'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand help; and not __fish_seen_subcommand_from env exec status set sweep report selftest metrics undrain idle doctor explain support-bundle advertise config pbs plan reconcile slurm help" -f -a "metrics" -d 'Print numbers about MPS on this node for Prometheus (root)'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand help; and not __fish_seen_subcommand_from env exec status set sweep report selftest metrics undrain idle doctor explain support-bundle advertise config pbs plan reconcile slurm help" -f -a "undrain" -d 'Lift our own drain of this node after a clean recheck (root)'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand help; and not __fish_seen_subcommand_from env exec status set sweep report selftest metrics undrain idle doctor explain support-bundle advertise config pbs plan reconcile slurm help" -f -a "idle" -d 'Say whether jobs with MPS run on this node, and wait for their end (root)'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand help; and not __fish_seen_subcommand_from env exec status set sweep report selftest metrics undrain idle doctor explain support-bundle advertise config pbs plan reconcile slurm help" -f -a "doctor" -d 'Say what keeps this host from giving jobs an MPS, one line each, with what to do'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand help; and not __fish_seen_subcommand_from env exec status set sweep report selftest metrics undrain idle doctor explain support-bundle advertise config pbs plan reconcile slurm help" -f -a "explain" -d 'Say in words what an error of CUDA\'s under MPS, or a log, tells: cause, remedy, source'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand help; and not __fish_seen_subcommand_from env exec status set sweep report selftest metrics undrain idle doctor explain support-bundle advertise config pbs plan reconcile slurm help" -f -a "support-bundle" -d 'Pack what a report of a problem needs to say of this node into one file of root\'s (root)'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand help; and not __fish_seen_subcommand_from env exec status set sweep report selftest metrics undrain idle doctor explain support-bundle advertise config pbs plan reconcile slurm help" -f -a "advertise" -d 'Print the lines that make this node offer shares of its GPUs'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand help; and not __fish_seen_subcommand_from env exec status set sweep report selftest metrics undrain idle doctor explain support-bundle advertise config pbs plan reconcile slurm help" -f -a "config" -d 'The configuration'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand help; and not __fish_seen_subcommand_from env exec status set sweep report selftest metrics undrain idle doctor explain support-bundle advertise config pbs plan reconcile slurm help" -f -a "pbs" -d 'The verbs of `mpsctl pbs`'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand help; and not __fish_seen_subcommand_from env exec status set sweep report selftest metrics undrain idle doctor explain support-bundle advertise config pbs plan reconcile slurm help" -f -a "plan" -d 'Print what root would do here for a job, and do nothing of it'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand help; and not __fish_seen_subcommand_from env exec status set sweep report selftest metrics undrain idle doctor explain support-bundle advertise config pbs plan reconcile slurm help" -f -a "reconcile" -d 'Take down what jobs left that their scheduler no longer has here, and deliver or lift our own drains (root)'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand help; and not __fish_seen_subcommand_from env exec status set sweep report selftest metrics undrain idle doctor explain support-bundle advertise config pbs plan reconcile slurm help" -f -a "slurm" -d 'The verbs of `mpsctl slurm`'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand help; and not __fish_seen_subcommand_from env exec status set sweep report selftest metrics undrain idle doctor explain support-bundle advertise config pbs plan reconcile slurm help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand help; and __fish_seen_subcommand_from config" -f -a "check" -d 'Check a draft of the file, whosever it is, before it is put in place; without FILE the one in force'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand help; and __fish_seen_subcommand_from config" -f -a "show" -d 'Check the file, and print every key with its value in force on a node and the line it comes from'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand help; and __fish_seen_subcommand_from pbs" -f -a "install" -d 'Put our scripts (Torque) or our hook (OpenPBS) in place; print what only an administrator can do'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand help; and __fish_seen_subcommand_from pbs" -f -a "uninstall" -d 'Remove what install put there, once no job with MPS runs on this node'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand help; and __fish_seen_subcommand_from pbs" -f -a "request" -d 'Read a request as the queuejob hook does: print it and the account without it, as JSON'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand help; and __fish_seen_subcommand_from pbs" -f -a "check" -d 'Say what works, what could be better, and what is wrong, one line each'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand help; and __fish_seen_subcommand_from slurm" -f -a "enable" -d 'Write our line for the plugin that fits the installed Slurm (root)'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand help; and __fish_seen_subcommand_from slurm" -f -a "disable" -d 'Remove what enable wrote, once no job with MPS runs on this node (root)'
complete -c mpsctl -n "__fish_mpsctl_using_subcommand help; and __fish_seen_subcommand_from slurm" -f -a "check" -d 'Say what works, what could be better, and what is wrong, one line each'
