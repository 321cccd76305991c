complete -c mps-epilogue -l scheduler -d 'The batch system; without it, found from the number of arguments and the environment' -r -f -a "slurm\t'Slurm, through the plugin'
torque\t'Torque'
openpbs\t'OpenPBS or PBS Professional'"
complete -c mps-epilogue -l config -d 'Configuration; a file of root\'s. Only its directories are needed: the job\'s journal has the rest' -r -F
complete -c mps-epilogue -l step -d 'End the daemon of this step alone (Slurm)' -r
complete -c mps-epilogue -l strict -d 'Exit 2 when something of the job is left'
complete -c mps-epilogue -s h -l help -d 'Print help (see more with \'--help\')'
complete -c mps-epilogue -s V -l version -d 'Print version'
