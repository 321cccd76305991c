"""Drives the programs of programs.py and programs.cu in each mode, and writes what it saw after each of them.

    programs_driver.py SPEC RESULT

SPEC is JSON: 'modes' (name, the words before a rank's command, environment), 'home', 'families' in their order, 'budget', 'window'
and 'rounds', 'ranks', 'sources', 'nvcc', 'tools', 'gpu' and 'shared', the folder of shared memory. All ranks of a family live at
once, those of each mode under that mode's MPS. They wait for their input but in the windows of their own mode, which take turns.
"""

import json
import os
import pathlib
import selectors
import subprocess
import sys
import threading
import time

# Longest time for a rank to become ready for a program, to answer after its window, and to warm up, s.
PREPARE, ANSWER, WARM = 40, 5, 90
# Ranks that wait for each other. All modes begin at once and have this long, because one rank alone cannot warm them up.
JOINED = {"jaxplain": 25, "jaxranks": 30, "nvshmem": 30}
# From the command until all ranks count, s: the GPU's clock rises, and all start together.
BEFORE = 0.15
CUDA = [
    "launches",
    "launches waited for",
    "memory bandwidth",
    "kernels of a quarter GPU",
    "cooperative groups",
    "managed memory",
    "IPC between ranks",
    "CUDA graphs",
    "small copies",
    "stream priorities",
    "memory pool",
]
DYNAMIC = ["dynamic parallelism"]
# How much two equal answers may differ: CUDA's libraries choose their kernels by the multiprocessors they see.
SAME = 2e-2


class Rank:
    """One process. One that dies or does not answer in time has ended, and says why."""

    def __init__(self, spec, mode, family, number):
        self.folder = pathlib.Path(spec["home"], family.replace(" ", "-") + "." + mode["name"])
        self.folder.mkdir(exist_ok=True)
        self.errors = self.folder / f"{number}.err"
        environment = os.environ | mode["environment"] | {"OMPI_COMM_WORLD_LOCAL_RANK": str(number)}
        words = mode["before"] + command(spec, family, number, self.folder)
        self.held, self.why, self.process = b"", None, None
        with open(self.errors, "wb") as errors:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors}
            try:
                self.process = subprocess.Popen(words, **pipes, env=environment, cwd=self.folder)
            except OSError as error:
                self.why = f"cannot start: {error}"

    def say(self, *words):
        if self.why is not None:
            return
        try:
            self.process.stdin.write(("\t".join(map(str, words)) + "\n").encode())
            self.process.stdin.flush()
        except (BrokenPipeError, ValueError):
            self.end("ended")

    def hear(self, limit):
        """The next answer, by the moment `limit`."""
        with selectors.DefaultSelector() as selector:
            if self.why is None:
                selector.register(self.process.stdout, selectors.EVENT_READ)
            while self.why is None and b"\n" not in self.held:
                if not selector.select(max(0, limit - time.monotonic())):
                    self.end("no answer in time")
                else:
                    more = os.read(self.process.stdout.fileno(), 1 << 16)
                    self.held += more
                    if not more:
                        self.end("ended")
        line, _, self.held = self.held.partition(b"\n")
        if self.why is not None:
            return {"error": self.why}
        try:
            return json.loads(line)
        except ValueError:
            return {"error": f"wrote {line[:200]!r}"}

    def end(self, why):
        if self.why is None:
            self.process.kill()
            code = self.process.wait()
            said = self.errors.read_text(errors="replace").strip()[-300:].replace("\n", " ")
            self.why = f"{why} (exit {code}): {said}"

    def maps(self, folder):
        """The names of the files in `folder` that it maps, also of those that are deleted."""
        try:
            lines = pathlib.Path(f"/proc/{self.process.pid}/maps").read_text().splitlines()
        except (AttributeError, OSError):
            return set()
        found = (line.partition(f" {folder}/")[2].removesuffix(" (deleted)") for line in lines)
        return {name for name in found if name}

    def close(self):
        if self.process is None:
            return
        try:
            self.process.stdin.close()
            self.process.wait(3)
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()


def command(spec, family, number, folder):
    if family in ("cuda", "dynamic"):
        return [f"{spec['home']}/{family}", str(number), str(folder)]
    return [sys.executable, spec["sources"] + "/programs.py", family, str(number), str(spec["ranks"]), str(folder)]


def ask(ranks, words, seconds):
    """All of them at once."""
    for rank in ranks:
        rank.say(*words)
    limit = time.monotonic() + seconds
    return [rank.hear(limit) for rank in ranks]


class Gpu:
    """What NVML says of the GPU."""

    def __init__(self, uuid):
        try:
            import pynvml

            pynvml.nvmlInit()
            self.nvml, self.device = pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid)
        except Exception as error:
            print(f"no NVML: {error}", file=sys.stderr)
            self.nvml = None

    def busy(self):
        """Per cent of the last sample in which kernels ran, and in which memory was read or written."""
        if self.nvml is None:
            return None
        rates = self.nvml.nvmlDeviceGetUtilizationRates(self.device)
        return [rates.gpu, rates.memory]


class Run:
    def __init__(self, spec, result):
        self.spec, self.result = spec, pathlib.Path(result)
        self.end = time.monotonic() + spec["budget"]
        self.gpu = Gpu(spec["gpu"])
        self.seen = {"programs": [], "tools": [], "warmed": {}, "seconds": {}}
        self.begin = time.monotonic()

    def keep(self):
        self.seen["seconds"]["in all"] = round(time.monotonic() - self.begin, 1)
        new = self.result.with_suffix(".new")
        new.write_text(json.dumps(self.seen, indent=1))
        new.rename(self.result)

    def left(self):
        return self.end - time.monotonic()

    def go(self):
        self.warm()
        for family in self.spec["families"]:
            begin = time.monotonic()
            print(f"programs: {family}", file=sys.stderr, flush=True)
            try:
                self.tools() if family == "tools" else Family(self, family).go()
            except Exception as error:
                # The other families still run.
                self.seen.setdefault("failed", {})[family] = repr(error)
            self.seen["seconds"][family] = round(time.monotonic() - begin, 1)
            self.keep()

    def warm(self):
        """Builds the CUDA programs, and has one rank of each Python family prepare all of its programs, all at once."""
        alone = ("cuda", "dynamic", "tools", *JOINED)
        python = [family for family in self.spec["families"] if family not in alone]
        builds = {}
        for family, flags in (("cuda", []), ("dynamic", ["-DDYNAMIC", "-rdc=true"])):
            words = [self.spec["nvcc"], "-O2", "-std=c++17", *self.spec["flags"], *flags, "-o", f"{self.spec['home']}/{family}"]
            words.append(self.spec["sources"] + "/programs.cu")
            builds[family] = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=self.spec["home"])
        plain = self.spec["modes"][0]
        limit = time.monotonic() + min(WARM, max(1, self.left()))
        warmers = []
        for family in python:
            count = {"torch": 5, "jax": 2}.get(family, 1)
            for number in range(count):
                warmers.append((family, Rank(self.spec, plain | {"name": f"warm{number}"}, family, 0)))
                warmers[-1][1].say("warm", number, count)
        for family, warmer in warmers:
            heard = warmer.hear(limit)
            found = self.seen["warmed"].setdefault(family, {})
            found.update(heard.get("warmed", {f"a warmer of {family}": heard}))
            warmer.close()
        for family, build in builds.items():
            try:
                said, _ = build.communicate(timeout=max(1, limit - time.monotonic()))
            except subprocess.TimeoutExpired:
                build.kill()
                said = b"nvcc took too long"
                build.wait()
            if build.returncode != 0:
                self.seen["warmed"][family] = {"error": said.decode(errors="replace")[-600:]}
        self.seen["seconds"]["warm"] = round(time.monotonic() - self.begin, 1)
        self.keep()

    def tools(self):
        """NVIDIA's tools on one small program, without MPS and with it."""
        for name, words in self.spec["tools"].items():
            row = {"name": name}
            for mode in self.spec["modes"][:2]:
                if self.left() < 20:
                    row[mode["name"]] = "not run: the time was over"
                    continue
                program = command(self.spec, "cuda", 0, self.spec["home"])
                begin = time.monotonic()
                try:
                    ran = subprocess.run(
                        mode["before"] + words + program,
                        input=f"prepare\t{CUDA[0]}\n".encode(),
                        env=os.environ | mode["environment"] | {"OMPI_COMM_WORLD_LOCAL_RANK": "0"},
                        cwd=self.spec["home"],
                        capture_output=True,
                        timeout=15,
                    )
                    said, code = ran.stdout + ran.stderr, ran.returncode
                except subprocess.TimeoutExpired as late:
                    said, code = (late.stdout or b"") + (late.stderr or b""), "not ended within 15 s"
                except OSError as error:
                    said, code = str(error).encode(), "not started"
                row[mode["name"]] = {
                    "exit": code,
                    "answered": b'"answer":[1000]' in said,
                    "seconds": round(time.monotonic() - begin, 1),
                    "said": said.decode(errors="replace")[-700:],
                }
            self.seen["tools"].append(row)
            self.keep()


class Family:
    def __init__(self, run, name):
        self.run, self.spec, self.name = run, run.spec, name
        self.modes = self.spec["modes"]
        self.sets = {}
        # The mode of each former rank, by its pid as CUDA writes it.
        self.pids = {}
        self.shared = pathlib.Path(self.spec["shared"])
        self.before = set(os.listdir(self.shared))

    def programs(self):
        if self.name == "cuda":
            return CUDA
        if self.name == "dynamic":
            return DYNAMIC
        sys.path.insert(0, self.spec["sources"])
        import programs

        return list(programs.FAMILIES[self.name])

    def go(self):
        for number, name in enumerate(self.programs()):
            row = {"name": name, "family": self.name}
            self.run.seen["programs"].append(row)
            # A whole program needs its windows and some seconds to prepare.
            if self.run.left() < 15 * self.spec["window"] * self.spec["rounds"] / 3 + 5:
                row["not_run"] = "the time was over"
                continue
            print(f"programs: {name}, {self.run.left():.0f} s left", file=sys.stderr, flush=True)
            row |= self.one(name, number == 0 and self.name not in JOINED)
            self.run.keep()
        if left := self.close():
            self.run.seen.setdefault("left", {})[self.name] = left

    def close(self):
        """Ends all ranks. Says how many files of shared memory those of each mode leave, and removes what ranks without MPS leave too."""
        mapped = {}
        for mode, ranks in self.sets.items():
            for name in set().union(*(rank.maps(self.shared) for rank in ranks)):
                mapped.setdefault(name, set()).add(mode)
        for ranks in self.sets.values():
            for rank in ranks:
                rank.close()
        left, files = {}, {}
        for name in set(os.listdir(self.shared)) - self.before:
            words = name.split(".")
            kind = ".".join("PID" if word in self.pids else word for word in words)
            for mode in {self.pids[word] for word in words if word in self.pids} or mapped.get(name, ()):
                count = left.setdefault(kind, {})
                count[mode] = count.get(mode, 0) + 1
                files.setdefault(kind, set()).add(name)
        for kind, count in left.items():
            if self.modes[0]["name"] in count:
                for name in files[kind]:
                    (self.shared / name).unlink()
        return left

    def one(self, name, is_first):
        row, answers = {}, {}
        if is_first:
            # One mode after the other: how long a user waits for the first result of four ranks.
            row["start_s"] = {}
            for mode in self.modes:
                begin = time.monotonic()
                self.start(mode)
                answers[mode["name"]] = ask(self.sets[mode["name"]], ("prepare", name), PREPARE)
                row["start_s"][mode["name"]] = round(time.monotonic() - begin, 2)
        else:
            for mode in self.modes:
                self.start(mode)
            every = [rank for mode in self.modes for rank in self.sets[mode["name"]]]
            heard = ask(every, ("prepare", name), JOINED.get(self.name, PREPARE))
            for place, mode in enumerate(self.modes):
                count = self.spec["ranks"]
                answers[mode["name"]] = heard[place * count : (place + 1) * count]
        plain = answers[self.modes[0]["name"]]
        row["version"] = next((one["version"] for one in plain if "version" in one), None)
        row["unit"] = next((one["unit"] for one in plain if "unit" in one), None)
        row["answers"] = {mode: [one.get("answer", one.get("error")) for one in all] for mode, all in answers.items()}
        row["same"] = {mode: same(all, plain) for mode, all in answers.items()}
        row["prepare_s"] = round(max(one.get("seconds", 0) for all in answers.values() for one in all), 2)
        if row["unit"]:
            row |= self.windows([mode for mode in self.modes if not any("error" in one for one in answers[mode["name"]])])
            if self.name == "torch" and lost(row):
                row |= ask(self.sets[self.modes[0]["name"]][:1], ("launches",), 10)[0]
        return row

    def start(self, mode):
        """The ranks of a mode that are not there, or ended."""
        ranks = self.sets.get(mode["name"], [])
        if not ranks or any(rank.why is not None for rank in ranks):
            for rank in ranks:
                rank.close()
            make = lambda number: Rank(self.spec, mode, self.name, number)
            ranks = self.sets[mode["name"]] = [make(number) for number in range(self.spec["ranks"])]
            self.pids |= {f"{rank.process.pid:x}": mode["name"] for rank in ranks if rank.process}

    def windows(self, modes):
        cases = [("one", mode, 1) for mode in modes[:2]] + [("four", mode, self.spec["ranks"]) for mode in modes]
        seen = {key: {"per_second": {}, "gpu_busy": {}, "memory_busy": {}, "processor": {}} for key in ("one", "four")}
        failed = {}
        for turn in range(self.spec["rounds"]):
            for place in range(len(cases)):
                key, mode, count = cases[(turn + place) % len(cases)]
                found = self.window(self.sets[mode["name"]][:count])
                if "error" in found:
                    failed[f"{key}, {mode['name']}"] = found["error"]
                    continue
                for what, figure in found.items():
                    seen[key][what].setdefault(mode["name"], []).append(figure)
        return seen | ({"failed": failed} if failed else {})

    def window(self, ranks):
        at, length, busy = time.monotonic() + BEFORE, self.spec["window"], []

        def look():
            time.sleep(max(0, at + 0.9 * length - time.monotonic()))
            busy.append(self.run.gpu.busy())

        looking = threading.Thread(target=look)
        looking.start()
        heard = ask(ranks, ("run", f"{at:.6f}", length), BEFORE + length + ANSWER)
        looking.join()
        for one in heard:
            if "error" in one:
                return one
        found = {"per_second": round(sum(one["count"] / one["seconds"] for one in heard), 3)}
        found["processor"] = round(sum(one["processor"] for one in heard) / len(heard), 2)
        if busy[0]:
            found["gpu_busy"], found["memory_busy"] = busy[0]
        return found


def same(answers, plain):
    """Whether each rank computes, or fails, as the same rank does without MPS."""

    def near(a, b):
        return abs(a - b) <= SAME * max(abs(a), abs(b), 1e-6)

    def equal(one, other):
        a, b = one.get("answer"), other.get("answer")
        return a is b if a is None or b is None else len(a) == len(b) and all(map(near, a, b))

    return all(map(equal, answers, plain))


def middle(figures):
    return sorted(figures)[len(figures) // 2] if figures else None


def lost(row):
    def less(rates):
        plain, *others = [middle(figures) for figures in rates.values()] or [None]
        return plain and any(other is not None and other < 0.97 * plain for other in others)

    return less(row["one"]["per_second"]) or less(row["four"]["per_second"])


if __name__ == "__main__":
    Run(json.loads(pathlib.Path(sys.argv[1]).read_text()), sys.argv[2]).go()
