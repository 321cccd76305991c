"""A rank of the Python programs: reads commands on standard input and answers each in one line of JSON, as programs.cu does.

    programs.py FAMILY RANK RANKS FOLDER        FOLDER is one of the ranks that belong together

The commands are 'prepare NAME', 'run AT SECONDS', 'launches' and 'warm FIRST STEP'; words stand between tabs. A program is a function that
returns what it computes, which must be the same under MPS, its unit, and a step: some work, waited for, and how many units it was.
"""

import importlib.metadata
import json
import os
import pathlib
import resource
import sys
import time

DEVICE = os.environ.get("PROGRAMS_DEVICE", "cuda")
FAMILIES = {}
RANK, RANKS, FOLDER = 0, 1, pathlib.Path(".")


def program(family, name, package):
    def listed(make):
        FAMILIES.setdefault(family, {})[name] = (make, package)
        return make

    return listed


def repeated(times, unit, once, wait):
    """A step of so many times `once`."""

    def step():
        for _ in range(times):
            once()
        wait()
        return times

    return unit, step


# PyTorch and what uses it


def torch_wait():
    import torch

    if DEVICE == "cuda":
        torch.cuda.synchronize()


def seeded():
    """Programs draw on the processor: on a GPU the numbers depend on the multiprocessors that a rank sees."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(1)
    return torch


def training(model, loss_of, unit, times=2, rate=0.01):
    """Trains `model`; the answer is its loss at each of the first three steps."""
    import torch

    optimizer = torch.optim.SGD(model.parameters(), lr=rate)

    def once():
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        return loss

    answer = [once().item() for _ in range(3)]
    return answer, *repeated(times, unit, once, torch_wait)


def inference(once, unit, times=5):
    import torch

    with torch.inference_mode():
        answer = [once().float().abs().mean().item()]

    @torch.inference_mode()
    def counted():
        once()

    return answer, *repeated(times, unit, counted, torch_wait)


def network(torch):
    """A small network of convolutions, and pictures for it."""
    from torch import nn

    def block(wide, out):
        return nn.Sequential(nn.Conv2d(wide, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU(), nn.MaxPool2d(2))

    blocks = (block(a, b) for a, b in ((3, 32), (32, 64), (64, 128)))
    model = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))
    return model.to(DEVICE), torch.randn(16, 3, 64, 64).to(DEVICE), torch.randint(10, (16,)).to(DEVICE)


@program("torch", "PyTorch: ResNet-18 training", "torch")
def resnet():
    torch = seeded()
    import torchvision

    model = torchvision.models.resnet18(num_classes=10).to(DEVICE).train()
    images = torch.randn(32, 3, 128, 128).to(DEVICE)
    labels = torch.randint(10, (32,)).to(DEVICE)
    return training(model, lambda model: torch.nn.functional.cross_entropy(model(images), labels), "steps")


@program("torch", "transformers: GPT-2 generate", "transformers")
def gpt2():
    torch = seeded()
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_layer=6)).to(DEVICE).eval()
    words = torch.randint(1, 50000, (4, 16)).to(DEVICE)
    options = {"max_new_tokens": 16, "min_new_tokens": 16, "do_sample": False, "pad_token_id": 0}
    options["attention_mask"] = torch.ones_like(words)
    return inference(lambda: model.generate(words, **options), "sequences of 16 words", times=1)


@program("torch", "transformers: BERT", "transformers")
def bert():
    torch = seeded()
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig(num_hidden_layers=6)).to(DEVICE).eval()
    words = torch.randint(1, 30000, (8, 128)).to(DEVICE)
    return inference(lambda: model(words).last_hidden_state, "batches")


@program("torch", "PyTorch: CUDA graph", "torch")
def graph():
    torch = seeded()
    model, pictures, _ = network(torch)
    model.eval()
    with torch.inference_mode():
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                model(pictures)
        torch.cuda.current_stream().wait_stream(stream)
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            out = model(pictures)
        captured.replay()
        answer = [out.abs().mean().item()]
    return answer, *repeated(50, "replays", captured.replay, torch_wait)


@program("torch", "PyTorch: torch.compile", "torch")
def compiled():
    torch = seeded()
    model, pictures, _ = network(torch)
    model = torch.compile(model.eval())
    return inference(lambda: model(pictures), "batches", times=20)


@program("torch", "torch_geometric: GCN training", "torch-geometric")
def gcn():
    torch = seeded()
    from torch_geometric.nn import GCNConv

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = GCNConv(64, 64), GCNConv(64, 8)

        def forward(self, nodes, edges):
            return self.second(self.first(nodes, edges).relu(), edges)

    nodes = torch.randn(5000, 64).to(DEVICE)
    edges = torch.randint(5000, (2, 40000)).to(DEVICE)
    labels = torch.randint(8, (5000,)).to(DEVICE)
    lost = torch.nn.functional.cross_entropy
    return training(Net().to(DEVICE), lambda model: lost(model(nodes, edges), labels), "steps", times=5)


@program("torch", "GPyTorch: exact regression", "gpytorch")
def gpytorch_regression():
    torch = seeded()
    import gpytorch

    class Regression(gpytorch.models.ExactGP):
        def __init__(self, x, y, likelihood):
            super().__init__(x, y, likelihood)
            self.mean = gpytorch.means.ConstantMean()
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    x = torch.linspace(0, 1, 400, device=DEVICE)
    y = torch.sin(x * 12)
    likelihood = gpytorch.likelihoods.GaussianLikelihood().to(DEVICE)
    model = Regression(x, y, likelihood).to(DEVICE).train()
    likelihood.train()
    marginal = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    return training(model, lambda model: -marginal(model(x), y), "steps", times=1)


@program("torch", "Lightning: training", "pytorch-lightning")
def lightning():
    torch = seeded()
    import logging

    import pytorch_lightning
    from pytorch_lightning.plugins.environments import LightningEnvironment

    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    model, pictures, labels = network(torch)

    class Module(pytorch_lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = model

        def training_step(self, batch, _):
            self.lost = torch.nn.functional.cross_entropy(self.model(batch[0]), batch[1])
            return self.lost

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    def fit(steps):
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
        where = {"accelerator": "gpu" if DEVICE == "cuda" else "cpu", "devices": 1}
        # Otherwise it looks for a launcher, and starts MPI if mpi4py is installed.
        where["plugins"] = [LightningEnvironment()]
        trainer = pytorch_lightning.Trainer(max_steps=steps, **where, **quiet)
        trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=16))

    module = Module()
    data = torch.utils.data.TensorDataset(pictures.cpu().repeat(20, 1, 1, 1), labels.cpu().repeat(20))
    fit(3)
    answer = [module.lost.item()]
    return answer, *repeated(20, "steps", lambda: None, lambda: fit(20))


@program("torch", "Accelerate: training", "accelerate")
def accelerate():
    torch = seeded()
    from accelerate import Accelerator

    model, pictures, labels = network(torch)
    accelerator = Accelerator(cpu=DEVICE != "cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer = accelerator.prepare(model, optimizer)

    def once():
        optimizer.zero_grad()
        lost = torch.nn.functional.cross_entropy(model(pictures), labels)
        accelerator.backward(lost)
        optimizer.step()
        return lost

    answer = [once().item() for _ in range(3)]
    return answer, *repeated(10, "steps", once, torch_wait)


@program("torch", "timm: vision transformer", "timm")
def vision():
    torch = seeded()
    import timm

    model = timm.create_model("vit_small_patch16_224", pretrained=False).to(DEVICE).eval()
    pictures = torch.randn(8, 3, 224, 224).to(DEVICE)
    return inference(lambda: model(pictures), "batches", times=3)


@program("torch", "e3nn: tensor products", "e3nn")
def tensor_products():
    torch = seeded()
    from e3nn import o3

    product = o3.FullyConnectedTensorProduct("16x0e + 8x1o", "1x0e + 1x1o", "16x0e + 8x1o").to(DEVICE)
    x, y = (torch.randn(5000, irreps.dim).to(DEVICE) for irreps in (product.irreps_in1, product.irreps_in2))
    return inference(lambda: product(x, y), "products", times=10)


@program("torch", "Triton: a kernel of one's own", "triton")
def triton_kernel():
    torch = seeded()
    import triton

    # Triton looks for it among the globals.
    global tl
    from triton import language as tl

    @triton.jit
    def add(x, y, out, count, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        mask = at < count
        tl.store(out + at, tl.load(x + at, mask=mask) + tl.load(y + at, mask=mask), mask=mask)

    x, y = (torch.randn(1 << 20).to(DEVICE) for _ in range(2))
    out = torch.empty_like(x)
    once = lambda: add[(1024,)](x, y, out, x.numel(), BLOCK=1024)
    once()
    return [out.abs().mean().item()], *repeated(100, "kernels", once, torch_wait)


@program("torch", "torchdiffeq: an equation", "torchdiffeq")
def equation():
    torch = seeded()
    from torchdiffeq import odeint

    field = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 32)).to(DEVICE)
    start, times = torch.randn(256, 32).to(DEVICE), torch.linspace(0, 1, 5, device=DEVICE)
    once = lambda: odeint(lambda _, y: field(y), start, times, method="rk4")
    return inference(once, "solutions", times=5)


@program("torch", "PEFT: LoRA training", "peft")
def lora():
    torch = seeded()
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_layer=4, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)).to(DEVICE)
    model = get_peft_model(model, LoraConfig(r=8, target_modules=["c_attn"], fan_in_fan_out=True, lora_dropout=0.0))
    words = torch.randint(1, 50000, (4, 64)).to(DEVICE)
    return training(model, lambda model: model(input_ids=words, labels=words).loss, "steps")


@program("torch", "NCCL: one rank on a GPU", "torch")
def collective():
    torch = seeded()
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()
    store = dist.FileStore(str(FOLDER / f"nccl-{os.getpid()}"), 1)
    dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo", store=store, rank=0, world_size=1)
    own = torch.ones(1 << 20, device=DEVICE)
    once = lambda: dist.all_reduce(own)
    once()
    return [own.sum().item()], *repeated(20, "all-reduces of 4 MiB", once, torch_wait)


# JAX and what uses it


def jax_program(function, state, unit, times):
    """A compiled function of its own result."""
    import jax

    function = jax.jit(function)
    held = [function(state)]
    # The first three results; later ones may differ more.
    answer = [float(abs(leaf).mean()) for leaf in jax.tree.leaves(held[0]) if leaf.dtype.kind == "f"]

    def once():
        held[0] = function(held[0])

    return answer, *repeated(times, unit, once, lambda: jax.block_until_ready(held[0]))


@program("jax", "JAX: training", "jax")
def jax_training():
    import jax
    from jax import numpy as jnp

    keys = jax.random.split(jax.random.PRNGKey(1), 4)
    x = jax.random.normal(keys[0], (256, 256))
    y = jax.random.normal(keys[1], (256, 64))
    weights = [jax.random.normal(keys[2], (256, 512)) * 0.05, jax.random.normal(keys[3], (512, 64)) * 0.05]

    def lost(weights):
        return jnp.mean((jnp.tanh(x @ weights[0]) @ weights[1] - y) ** 2)

    return jax_program(
        lambda weights: [w - 0.01 * g for w, g in zip(weights, jax.grad(lost)(weights))], weights, "steps", 50
    )


@program("jax", "Diffrax: equations", "diffrax")
def diffrax_equations():
    import diffrax
    import jax
    from jax import numpy as jnp

    def field(_, y, args):
        return jnp.stack([y[0] * (1.1 - 0.4 * y[1]), y[1] * (0.1 * y[0] - 0.4)])

    def solve(y):
        term, solver = diffrax.ODETerm(field), diffrax.Tsit5()
        found = diffrax.diffeqsolve(term, solver, 0.0, 1.0, 0.05, y, saveat=diffrax.SaveAt(t1=True))
        return found.ys[0]

    start = 5 + jax.random.uniform(jax.random.PRNGKey(1), (1000, 2))
    return jax_program(jax.vmap(solve), start, "solutions", 5)


@program("jax", "Flax: training", "flax")
def flax_training():
    import jax
    import optax
    from flax import linen
    from jax import numpy as jnp

    class Net(linen.Module):
        @linen.compact
        def __call__(self, x):
            x = linen.relu(linen.Conv(32, (3, 3))(x))
            x = linen.relu(linen.Conv(64, (3, 3), strides=(2, 2))(x))
            return linen.Dense(10)(x.mean(axis=(1, 2)))

    keys = jax.random.split(jax.random.PRNGKey(1), 3)
    x, y = jax.random.normal(keys[0], (32, 32, 32, 3)), jax.random.randint(keys[1], (32,), 0, 10)
    net, optimizer = Net(), optax.adam(1e-3)
    weights = net.init(keys[2], x)

    def lost(weights):
        return optax.softmax_cross_entropy_with_integer_labels(net.apply(weights, x), y).mean()

    def once(state):
        weights, moments = state
        changes, moments = optimizer.update(jax.grad(lost)(weights), moments)
        return optax.apply_updates(weights, changes), moments

    return jax_program(once, (weights, optimizer.init(weights)), "steps", 20)


@program("jax", "NumPyro: Hamiltonian Monte Carlo", "numpyro")
def monte_carlo():
    import jax
    import numpyro
    from jax import numpy as jnp
    from numpyro import distributions as dist
    from numpyro.infer import HMC

    data = jnp.sin(jnp.arange(1000.0))

    def model():
        mean = numpyro.sample("mean", dist.Normal(0, 1))
        spread = numpyro.sample("spread", dist.HalfNormal(1))
        numpyro.sample("seen", dist.Normal(mean, spread), obs=data)

    fixed = {"adapt_step_size": False, "adapt_mass_matrix": False}
    kernel = HMC(model, step_size=0.01, num_steps=10, trajectory_length=None, **fixed)
    state = kernel.init(jax.random.PRNGKey(1), 0, None, (), {})
    return jax_program(lambda state: kernel.sample(state, (), {}), state, "samples", 20)


def slurm_ranks():
    """What jax.distributed makes of srun's variables: a rank takes the device of its number on the node."""
    import jax

    # The coordinator's port depends on the job's number, so each mode has its own.
    number = str(1000 + FOLDER.stat().st_ino % 3000)
    words = {"SLURM_JOB_ID": number, "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": str(RANKS)}
    os.environ |= words | {"SLURM_PROCID": str(RANK), "SLURM_LOCALID": str(RANK)}
    jax.distributed.initialize()
    own = jax.local_devices()
    assert DEVICE != "cuda" or own[0].platform in ("gpu", "cuda"), f"no GPU: {own}"
    x = jax.device_put(jax.numpy.arange(1000.0), own[0])
    return [float((x * 2).sum())], "", None


program("jaxplain", "JAX: ranks of Slurm on one GPU", "jax")(slurm_ranks)


@program("jaxranks", "JAX: ranks of Slurm, JAX_LOCAL_DEVICE_IDS=0", "jax")
def slurm_ranks_told():
    os.environ["JAX_LOCAL_DEVICE_IDS"] = "0"
    return slurm_ranks()


# CuPy, Numba and the bindings


@program("arrays", "CuPy: FFT", "cupy-cuda13x")
def fft():
    import cupy
    import numpy

    x = cupy.asarray(numpy.random.default_rng(1).standard_normal((512, 512)).astype("float32"))
    once = lambda: cupy.fft.fft2(x)
    answer = [float(cupy.abs(once()).mean())]
    return answer, *repeated(50, "transforms", once, cupy.cuda.Device().synchronize)


@program("arrays", "CuPy: sparse products", "cupy-cuda13x")
def sparse():
    import cupy
    import numpy
    import scipy.sparse
    from cupyx.scipy.sparse import csr_matrix

    matrix = scipy.sparse.random(200_000, 200_000, 1e-4, "csr", "float32", numpy.random.default_rng(1))
    matrix, x = csr_matrix(matrix), cupy.ones(200_000, dtype="float32")
    once = lambda: matrix @ x
    answer = [float(once().sum())]
    return answer, *repeated(50, "products", once, cupy.cuda.Device().synchronize)


@program("arrays", "Numba: a kernel of one's own", "numba-cuda")
def numba_kernel():
    import numpy
    from numba import cuda

    @cuda.jit
    def axpy(a, x, y):
        i = cuda.grid(1)
        if i < x.size:
            y[i] = a * x[i] + 1

    x = cuda.to_device(numpy.arange(1 << 20, dtype="float32"))
    y = cuda.device_array_like(x)
    once = lambda: axpy[4096, 256](2.0, x, y)
    once()
    return [float(y.copy_to_host().mean())], *repeated(100, "kernels", once, cuda.synchronize)


@program("arrays", "cuda.core: a kernel of one's own", "cuda-core")
def core_kernel():
    import cupy
    from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch

    device = Device()
    device.set_current()
    stream = device.create_stream()
    place = "int i = blockIdx.x * blockDim.x + threadIdx.x;"
    source = 'extern "C" __global__ void twice(float *x, float *y, int n) { %s if (i < n) y[i] = 2 * x[i]; }' % place
    built = Program(source, "c++", options=ProgramOptions(arch=f"sm_{device.arch}")).compile("cubin")
    kernel = built.get_kernel("twice")
    x = cupy.arange(1 << 20, dtype="float32")
    y = cupy.zeros_like(x)
    cupy.cuda.Device().synchronize()
    config = LaunchConfig(grid=4096, block=256)
    import ctypes

    once = lambda: launch(stream, config, kernel, x.data.ptr, y.data.ptr, ctypes.c_int(x.size))
    once()
    stream.sync()
    return [float(y.mean())], *repeated(100, "kernels", once, stream.sync)


# What travels as wheels, and what may be missing


def simulation(edge, name):
    def make():
        import dynamics
        import openmm

        file = FOLDER.parent / f"{name}.xml"
        if not file.exists():
            dynamics.EDGE = edge
            dynamics.prepare(str(file))
        context = dynamics.simulation(openmm.XmlSerializer.deserialize(file.read_text()))
        context.setState(openmm.XmlSerializer.deserialize(pathlib.Path(f"{file}.state").read_text()))
        context.getIntegrator().setStepSize(dynamics.STEP)
        energy = lambda: context.getState(energy=True).getPotentialEnergy()._value
        answer = [energy()]
        step = context.getIntegrator().step
        return answer, *repeated(1, "100 time steps", lambda: step(100), energy)

    return make


program("openmm", "OpenMM: a protein in water", "openmm")(simulation(6.2, "protein"))
program("openmm", "OpenMM: a small system", "openmm")(simulation(4.0, "small"))


@program("others", "tinygrad: matrix products", "tinygrad")
def tiny():
    os.environ["DEV"] = "CUDA" if DEVICE == "cuda" else "CPU"
    from tinygrad import Tensor, TinyJit
    from tinygrad.device import Device

    x = Tensor([[(3 * i + 7 * j) % 5 for j in range(256)] for i in range(256)]).float().realize()
    product = TinyJit(lambda x: (x @ x).relu().realize())
    held = [product(x) for _ in range(3)]
    answer = [float(held[-1].mean().item())]
    return answer, *repeated(20, "products", lambda: product(x), Device[Device.DEFAULT].synchronize)


@program("others", "OpenCL: a kernel of one's own", "pyopencl")
def opencl():
    # The driver's own library, with no system-wide list of drivers.
    os.environ.setdefault("OCL_ICD_FILENAMES", "libnvidia-opencl.so.1")
    import numpy
    import pyopencl

    platforms = pyopencl.get_platforms()
    platform = next((one for one in platforms if "NVIDIA" in one.name), None)
    assert platform, f"no platform of NVIDIA's: {platforms}"
    context = pyopencl.Context(platform.get_devices()[:1])
    queue = pyopencl.CommandQueue(context)
    source = "__kernel void twice(__global float *x) { int i = get_global_id(0); x[i] = 2 * x[i] - 1; }"
    kernel = pyopencl.Program(context, source).build().twice
    here = numpy.ones(1 << 20, dtype="float32") * 3
    flags = pyopencl.mem_flags
    there = pyopencl.Buffer(context, flags.READ_WRITE | flags.COPY_HOST_PTR, hostbuf=here)
    once = lambda: kernel(queue, here.shape, None, there)
    once()
    pyopencl.enqueue_copy(queue, here, there)
    return [float(here.mean())], *repeated(100, "kernels", once, queue.finish)


@program("nvshmem", "NVSHMEM: a barrier of all ranks on one GPU", "nvshmem4py-cu13")
def shmem():
    import nvshmem.core
    from cuda.core import Device

    device = Device()
    device.set_current()
    file = FOLDER / "nvshmem-id"
    own = nvshmem.core.get_unique_id(empty=RANK != 0)
    if RANK == 0:
        file.with_suffix(".new").write_bytes(own._data.tobytes())
        file.with_suffix(".new").rename(file)
    else:
        end = time.monotonic() + 15
        while not file.exists():
            assert time.monotonic() < end, "no id of rank 0"
            time.sleep(0.01)
        own._data.view("int8")[:] = list(memoryview(file.read_bytes()).cast("b"))
    nvshmem.core.init(device=device, uid=own, rank=RANK, nranks=RANKS, initializer_method="uid")
    stream = device.create_stream()
    once = lambda: nvshmem.core.barrier_all(stream)
    once()
    stream.sync()
    # The ranks would wait for one that stops earlier, so nothing is counted.
    return [float(nvshmem.core.n_pes())], "", None


# The rank


class Rank:
    def __init__(self, family):
        self.family, self.current = family, None

    def prepare(self, name):
        begin = time.monotonic()
        self.current = None
        if self.family == "torch" and "torch" in sys.modules and DEVICE == "cuda":
            sys.modules["torch"].cuda.empty_cache()
        make, package = FAMILIES[self.family][name]
        answer, unit, self.current = make()
        version = f"{package} {importlib.metadata.version(package)}"
        return {"answer": answer, "unit": unit, "seconds": time.monotonic() - begin, "version": version}

    def run(self, at, seconds):
        at, seconds, step, count = float(at), float(seconds), self.current, 0
        while time.monotonic() < at:
            step()
        begin, busy = time.monotonic(), processor()
        while time.monotonic() - begin < seconds:
            count += step()
        took = time.monotonic() - begin
        return {"count": count, "seconds": took, "processor": (processor() - busy) / took}

    def launches(self):
        """Kernels that PyTorch starts in a step, by its own profiler."""
        import torch

        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            units = self.current()
        return {"launches_a_unit": len(profile.events()) / units}

    def warm(self, first, step):
        """Brings files into memory and compiled kernels into their caches; says which programs this machine can run."""
        found = {}
        for name in list(FAMILIES[self.family])[int(first) :: int(step)]:
            try:
                found[name] = self.prepare(name)
            except Exception as error:
                found[name] = {"error": told(error)}
        return {"warmed": found}


def processor():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def told(error):
    return f"{type(error).__name__}: {error}".strip().replace("\n", " ")[:600]


def main(family, rank, ranks, folder):
    global RANK, RANKS, FOLDER
    RANK, RANKS, FOLDER = int(rank), int(ranks), pathlib.Path(folder)
    # Some libraries write to standard output, which is for the answers.
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    sys.path.insert(0, str(pathlib.Path(__file__).parent))
    own = Rank(family)
    for line in sys.stdin:
        verb, *words = line.rstrip("\n").split("\t")
        try:
            seen = {"prepare": own.prepare, "run": own.run, "launches": own.launches, "warm": own.warm}[verb](*words)
        except Exception as error:
            seen = {"error": told(error)}
        out.write(json.dumps(seen) + "\n")
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
