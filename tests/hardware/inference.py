"""Requests of PyTorch, one after another, for a while; prints the milliseconds of each, at the end.

    inference.py convolution|stream SECONDS

convolution: a picture through a small network. stream: c = a + s * b over 3 x 64 MiB, bound by the GPU's memory.
"""

import sys
import time

BEGIN = time.monotonic()

import torch
from torch import nn

# From the start until it begins to count, s: those that start together count together.
AFTER = 8


def convolution():
    def block(wide, out):
        return nn.Sequential(nn.Conv2d(wide, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU(), nn.MaxPool2d(2))

    wide = (3, 32, 64, 128, 256)
    blocks = (block(a, b) for a, b in zip(wide, wide[1:]))
    ends = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 1000))
    model = nn.Sequential(*blocks, *ends).cuda().eval()
    picture = torch.randn(1, 3, 224, 224, device="cuda")
    return lambda: model(picture)


def stream():
    a, b, c = (torch.randn(16 << 20, device="cuda") for _ in range(3))
    return lambda: torch.add(a, b, alpha=2.0, out=c)


def go_on(request, end):
    times = []
    while (begin := time.monotonic()) < end:
        request()
        # Waits for the GPU: a launch by itself returns at once.
        torch.cuda.synchronize()
        times.append((time.monotonic() - begin) * 1e3)
    return times


@torch.inference_mode()
def run(kind, seconds):
    torch.manual_seed(1)
    request = {"convolution": convolution, "stream": stream}[kind]()
    late = time.monotonic() - BEGIN > AFTER
    go_on(request, BEGIN + AFTER)
    times = go_on(request, time.monotonic() + seconds)
    # The others still count.
    go_on(request, time.monotonic() + 2)
    print("\n".join(f"{each:.4f} ms" for each in times))
    print(f"{'late, ' if late else ''}PyTorch {torch.__version__}", flush=True)


run(sys.argv[1], float(sys.argv[2]))
