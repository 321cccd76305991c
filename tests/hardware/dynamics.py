"""Molecular dynamics with OpenMM: a small protein in water, PME, 4 fs steps, for a while; prints ns/day.

    dynamics.py prepare FILE        the system and its state, from the structure that OpenMM's own package has
    dynamics.py run FILE SECONDS    one simulation, on the first GPU that it sees
    dynamics.py watch FILE SECONDS  the same, with a line for each 100 steps: seconds since 1970, nanoseconds simulated
    dynamics.py steps FILE NUMBER   one of so many steps, and no more

With --gate=DIR a simulation that is up makes a file `up.PID` there and goes on. It counts from the time that `DIR/go` says.
With --by-rank on that of its rank modulo the number of those it sees, with --by-block on that which dealing the ranks out in
blocks gives, as programs do which map their ranks themselves.
"""

import time

BEGIN = time.monotonic()

import ctypes
import os
import pathlib
import site
import sys
import sysconfig

# OpenMM's CUDA plugin needs these by name; another package's copies work if they are elsewhere.
for folder in {sysconfig.get_path("purelib"), *site.getsitepackages()}:
    for name in ("libnvrtc.so.13", "libcufft.so.12"):
        for library in pathlib.Path(folder).glob(f"nvidia/*/lib/{name}"):
            ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)

import openmm
from openmm import app, unit

# Edge of the box, nm: about as many atoms as in DHFR's benchmark (23,558).
EDGE = 6.2
STEP = 4 * unit.femtoseconds
# From the start of a simulation until it begins to count, s.
AFTER = 9


def prepare(file):
    # The villin headpiece that OpenMM brings for its own test of an installation.
    structure = app.PDBFile(str(pathlib.Path(app.__file__).parent / "data" / "test.pdb"))
    field = app.ForceField("amber14-all.xml", "amber14/tip3pfb.xml")
    model = app.Modeller(structure.topology, structure.positions)
    model.deleteWater()
    model.addSolvent(field, boxSize=openmm.Vec3(EDGE, EDGE, EDGE) * unit.nanometers)
    system = field.createSystem(
        model.topology,
        nonbondedMethod=app.PME,
        nonbondedCutoff=0.9 * unit.nanometers,
        constraints=app.HBonds,
        hydrogenMass=1.5 * unit.amu,
    )
    context = simulation(system)
    context.setPositions(model.positions)
    openmm.LocalEnergyMinimizer.minimize(context, maxIterations=300)
    context.setVelocitiesToTemperature(300 * unit.kelvin, 1)
    context.getIntegrator().setStepSize(1 * unit.femtoseconds)
    context.getIntegrator().step(2000)
    state = context.getState(positions=True, velocities=True)
    pathlib.Path(file).write_text(openmm.XmlSerializer.serialize(system))
    pathlib.Path(file + ".state").write_text(openmm.XmlSerializer.serialize(state))
    print(f"{system.getNumParticles()} atoms, {context.getPlatform().getName()}, OpenMM {openmm.__version__}")


def choice():
    listed = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")
    rank, tasks = (int(os.environ.get(name, default)) for name, default in (("SLURM_LOCALID", 0), ("SLURM_NTASKS", 1)))
    if "--by-rank" in sys.argv:
        own = rank % len(listed)
    elif "--by-block" in sys.argv:
        own = rank * len(listed) // tasks
    else:
        return {}, listed[0]
    return {"DeviceIndex": str(own)}, listed[own]


def simulation(system):
    integrator = openmm.LangevinMiddleIntegrator(300 * unit.kelvin, 1 / unit.picosecond, STEP)
    names = [openmm.Platform.getPlatform(n).getName() for n in range(openmm.Platform.getNumPlatforms())]
    if "CUDA" in names:
        return openmm.Context(system, integrator, openmm.Platform.getPlatformByName("CUDA"), {"Precision": "mixed", **choice()[0]})
    if "--any-platform" in sys.argv:
        return openmm.Context(system, integrator)
    sys.exit("OpenMM has no CUDA platform: " + "; ".join(openmm.Platform.getPluginLoadFailures()))


def simulated(file):
    system = openmm.XmlSerializer.deserialize(pathlib.Path(file).read_text())
    context = simulation(system)
    context.setState(openmm.XmlSerializer.deserialize(pathlib.Path(file + ".state").read_text()))
    context.getIntegrator().setStepSize(STEP)
    return context


def steps(file, number):
    context = simulated(file)
    loaded = time.monotonic() - BEGIN
    context.getIntegrator().step(int(number))
    context.getState(energy=True)
    print(f"{number} steps, loaded in {loaded:.1f} s, {time.monotonic() - BEGIN:.1f} s in all, on {choice()[1]}", flush=True)


def run(file, seconds):
    context = simulated(file)
    # Kernels are compiled and neighbors start up before anything counts: simulations that start together count together.
    late = wait_for_all(context)
    begin = time.monotonic()
    steps = go_on(context, begin + float(seconds))
    days = (time.monotonic() - begin) / 86400
    print(f"{steps * STEP.value_in_unit(unit.nanoseconds) / days:.1f} ns/day{' (late)' if late else ''} on {choice()[1]}", flush=True)
    # The others still count.
    go_on(context, time.monotonic() + 2)


def wait_for_all(context):
    """Goes on until all begin to count. Returns whether this one came too late for that."""
    gates = [word.removeprefix("--gate=") for word in sys.argv if word.startswith("--gate=")]
    if not gates:
        late = time.monotonic() - BEGIN > AFTER
        go_on(context, BEGIN + AFTER)
        return late
    go_on(context, time.monotonic() + 1)
    gate = pathlib.Path(gates[0])
    (gate / f"up.{os.getpid()}").touch()
    while not (gate / "go").exists():
        go_on(context, time.monotonic() + 0.1)
    ahead = float((gate / "go").read_text()) - time.time()
    go_on(context, time.monotonic() + ahead)
    return ahead < 0


def watch(file, seconds):
    context = simulated(file)
    wait_for_all(context)
    steps, end = 0, time.monotonic() + float(seconds)
    while time.monotonic() < end:
        steps += advance(context)
        print(f"{time.time():.3f} {steps * STEP.value_in_unit(unit.nanoseconds):.6f}", flush=True)


def go_on(context, end):
    steps = 0
    while time.monotonic() < end:
        steps += advance(context)
    return steps


def advance(context):
    context.getIntegrator().step(100)
    # Waits for the GPU: a launch by itself returns at once.
    context.getState(energy=True)
    return 100


if __name__ == "__main__":
    {"prepare": prepare, "run": run, "watch": watch, "steps": steps}[sys.argv[1]](*[word for word in sys.argv[2:] if not word.startswith("--")])
