#!/bin/sh
# Programs are read from a here-document, by bash.
# Seen: bash -l scripts of centers
# --mps: same
#SBATCH --ntasks=2 --gres=gpu:1

srun --ntasks=2 bash <<'END'
echo from standard input
END
bash <<'END'
cuda-app --hold 0.1
END
