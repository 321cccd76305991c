"""One rank of a recipe of recipes.rs: computes on the GPU, takes memory as the recipe says, tells what it saw in one line of JSON, and stays a
client until the file GO is there.

    recipes.py RECIPE RANK RANKS LIMIT_MIB GO
"""

import ctypes
import json
import os
import sys
import time

MIB = 1 << 20
# How much it allocates at a time, MiB.
BLOCK = 64
# Longest time for a rank to stay, s.
STAY = 90
SIDE = 64


def matrices(rank):
    """Two matrices of small whole numbers, and the sum of all elements of their product: float32 has it exactly."""
    a = [[(7 * i + 3 * j + rank) % 8 for j in range(SIDE)] for i in range(SIDE)]
    b = [[(5 * i + j + 2 * rank) % 8 for j in range(SIDE)] for i in range(SIDE)]
    return a, b, sum(sum(row[k] for row in a) * sum(b[k]) for k in range(SIDE))


def driver():
    """CUDA's driver, with the first device."""
    cuda = ctypes.CDLL("libcuda.so.1")
    device = ctypes.c_int()
    assert cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(device), 0) == 0, "cuInit"
    return cuda, device


def memory():
    """Free and whole memory as CUDA tells a client, MiB."""
    cuda, device = driver()
    context, free, whole = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0, "primary context"
    assert cuda.cuCtxSetCurrent(context) == 0, "current context"
    assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(whole)) == 0, "cuMemGetInfo"
    return {"free_mib": free.value // MIB, "whole_mib": whole.value // MIB}


def whole_mib():
    """The device's memory without a context on it, MiB."""
    cuda, device = driver()
    whole = ctypes.c_size_t()
    assert cuda.cuDeviceTotalMem_v2(ctypes.byref(whole), device) == 0, "cuDeviceTotalMem"
    return whole.value // MIB


def blocks(take, refused, most):
    """Takes blocks until it is refused; how much it had then, MiB."""
    held = []
    try:
        while len(held) * BLOCK < most:
            held.append(take())
    except refused:
        pass
    return len(held) * BLOCK


def pytorch(rank, limit):
    import torch

    a, b, expected = matrices(rank)
    a, b = (torch.tensor(values, dtype=torch.float32, device="cuda") for values in (a, b))
    seen = {"right": (a @ b).sum().item() == expected} | memory()
    take = lambda: torch.empty(BLOCK * MIB, dtype=torch.uint8, device="cuda")
    # The recipe: the fraction is of the whole memory, so it is computed from the limit.
    torch.cuda.set_per_process_memory_fraction(limit / 2 / seen["whole_mib"])
    seen["taken_of_share_mib"] = blocks(take, torch.cuda.OutOfMemoryError, 2 * limit)
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1.0)
    seen["taken_mib"] = blocks(take, torch.cuda.OutOfMemoryError, 2 * limit)
    return seen


def jax(rank, limit):
    # The recipe: JAX takes its fraction of the whole memory at the start.
    os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{limit / 2 / whole_mib():.5f}"
    import jax

    a, b, expected = matrices(rank)
    a, b = (jax.numpy.array(values, dtype="float32") for values in (a, b))
    on_gpu = jax.devices()[0].platform in ("gpu", "cuda")
    right = float((a @ b).sum()) == expected
    share = (jax.devices()[0].memory_stats() or {}).get("bytes_limit", 0) // MIB
    return {"right": right and on_gpu, "taken_of_share_mib": share} | memory()


def cupy(rank, limit):
    import cupy

    a, b, expected = matrices(rank)
    a, b = (cupy.array(values, dtype=cupy.float32) for values in (a, b))
    seen = {"right": float((a @ b).sum()) == expected} | memory()
    take = lambda: cupy.empty(BLOCK * MIB, dtype=cupy.uint8)
    seen["taken_mib"] = blocks(take, cupy.cuda.memory.OutOfMemoryError, 2 * limit)
    return seen


def mpi(rank, _):
    import torch
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    own = torch.full((1000,), float(world.rank + 1), device="cuda").sum().item()
    together = world.allreduce(own)
    return {"right": world.size > 1 and together == 500 * world.size * (world.size + 1)} | memory()


def nccl(rank, ranks, where):
    import torch
    import torch.distributed as dist

    version = torch.cuda.nccl.version()
    seen = {"nccl": ".".join(map(str, version))}
    if version >= (2, 30):
        # The recipe for a newer NCCL. Fewer channels, so that all ranks have theirs at once.
        os.environ |= {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "4"}
    torch.cuda.set_device(0)
    own = torch.full((1000,), float(rank + 1), device="cuda")
    seen |= memory()
    try:
        dist.init_process_group("nccl", init_method=f"file://{where}.ranks", rank=rank, world_size=ranks)
        dist.all_reduce(own)
        seen["right"] = own.sum().item() == 500 * ranks * (ranks + 1)
    except dist.DistBackendError as error:
        seen["refused"] = str(error)[-1500:]
    return seen


def missing(error):
    """Whether an error says that a library is not on this machine."""
    return isinstance(error, ImportError) or any(words in str(error) for words in ("failed to load", "cannot load MPI", "cannot open shared"))


def run(recipe, rank, ranks, limit, go):
    # Some libraries write to standard output, which is for the one line.
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    recipes = {"pytorch": pytorch, "jax": jax, "cupy": cupy, "mpi": mpi}
    try:
        seen = nccl(rank, ranks, go) if recipe == "nccl" else recipes[recipe](rank, limit)
    except (ImportError, OSError, RuntimeError) as error:
        if not missing(error):
            raise
        seen = {"left_out": str(error).splitlines()[0]}
    versions = {name: getattr(sys.modules[name], "__version__", None) for name in ("torch", "jax", "cupy", "mpi4py") if name in sys.modules}
    told.write(json.dumps({"pid": os.getpid(), "rank": rank, "versions": versions} | seen) + "\n")
    told.flush()
    end = time.monotonic() + STAY
    while not os.path.exists(go) and time.monotonic() < end:
        time.sleep(0.05)
    # A refused library may wait for the others at its end.
    os._exit(0)


recipe, rank, ranks, limit, go = sys.argv[1:]
run(recipe, int(rank), int(ranks), int(limit), go)
