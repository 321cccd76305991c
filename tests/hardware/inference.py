"""Inference of a small network with PyTorch, one picture at a time, for a while; prints pictures a second.

    inference.py SECONDS
"""

import sys
import time

BEGIN = time.monotonic()

import torch
from torch import nn

# From the start until it begins to count, s: those that start together count together.
AFTER = 8


def network():
    def block(wide, out):
        return nn.Sequential(nn.Conv2d(wide, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU(), nn.MaxPool2d(2))

    wide = (3, 32, 64, 128, 256)
    return nn.Sequential(
        *(block(a, b) for a, b in zip(wide, wide[1:])), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 1000)
    )


def go_on(model, picture, end):
    pictures = 0
    while time.monotonic() < end:
        for _ in range(20):
            model(picture)
        # Waits for the GPU: a launch by itself returns at once.
        torch.cuda.synchronize()
        pictures += 20
    return pictures


@torch.inference_mode()
def run(seconds):
    torch.manual_seed(1)
    model = network().cuda().eval()
    picture = torch.randn(1, 3, 224, 224, device="cuda")
    late = time.monotonic() - BEGIN > AFTER
    go_on(model, picture, BEGIN + AFTER)
    begin = time.monotonic()
    pictures = go_on(model, picture, begin + seconds)
    rate = pictures / (time.monotonic() - begin)
    print(f"{rate:.1f} pictures/s{' (late)' if late else ''}, PyTorch {torch.__version__}", flush=True)
    # The others still count.
    go_on(model, picture, time.monotonic() + 2)


run(float(sys.argv[1]))
