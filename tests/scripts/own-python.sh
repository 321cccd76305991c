#!/bin/sh
# A program starts and quits the MPS.
# Seen: benchmarks that call subprocess.run
# --mps: 'its script names'
#SBATCH --ntasks=2 --gres=gpu:1

cat >benchmark.py <<'END'
import os
import subprocess

for name in ("PIPE", "LOG"):
    os.environ[f"CUDA_MPS_{name}_DIRECTORY"] = os.path.abspath(name.lower())
    os.makedirs(name.lower(), exist_ok=True)
subprocess.run(["nvidia-cuda-mps-control", "-d"], check=True)
running = [subprocess.Popen(["cuda-app", "--hold", "0.2"]) for _ in range(2)]
print("codes", [one.wait() for one in running])
subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", text=True)
END
python3 benchmark.py
