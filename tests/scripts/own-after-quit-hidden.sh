#!/bin/sh
# A tool in two steps: one quits what it finds, the next starts its own in the default directory.
# Seen: workers that clean up before they start
# --mps: any: the first step quits the MPS that its job asked for
#SBATCH --ntasks=2 --gres=gpu:1

cat >tool <<'END'
control=$(printf 'nvidia-cuda-%s-control' mps)
case $SLURM_LOCALID$1 in
0quit) echo quit | $control >/dev/null 2>&1 ;;
0start) $control -d >/dev/null 2>&1 || echo "no start" ;;
esac
END
srun sh -c 'sh ./tool quit; true'
srun sh -c 'sh ./tool start; sleep 1; exec cuda-app --hold 0.2'
