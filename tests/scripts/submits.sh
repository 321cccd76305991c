#!/bin/sh
# The script submits the next job.
# Seen: chains of jobs
# --mps: same
#SBATCH --ntasks=2 --gres=gpu:1

cuda-app
sbatch --parsable --test-only --ntasks=1 --wrap true 2>/dev/null
echo "submitted: $?"
