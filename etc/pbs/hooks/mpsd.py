"""mpsd for OpenPBS: gives a job its own MPS on execjob_begin and takes it away on execjob_end and execjob_abort.

Imported by 'mpsctl pbs install', which fills in the first constants. No decision is made here: the job's attributes go
to mps-prologue, mps-epilogue and mpsctl as they stand, and their exit codes are obeyed. A job whose account does not
hold the letters "mps" and that has no resource 'mps' cannot have asked and starts no program of ours.

execjob_prologue and execjob_epilogue are left alone: a hook there would silence the site's classic scripts.
A reject in execjob_begin is retried, with nothing for the user to read; so a refusal is recorded there and told in
execjob_launch, where descriptor 2 is the job's own error file. Only what is the node's rejects in execjob_begin. PBS holds a job
after 21 such tries; so those that nothing but the node can have failed are not counted.

pbs_mom does nothing else while a hook on execjob_begin or execjob_abort runs, so no other job starts or ends. These two events
return within MOM_WAITS_S: what takes longer goes on without them. A start then leaves its outcome in the job's record,
and execjob_launch, which runs in the job's own process, waits for that. PBS tries a rejected job again at once, so the hook
moves the job's Execution_Time. A subjob that waits in state W breaks its array: its execjob_launch rejects, late.

A job that did not ask pays for the lines outside of ACTS and nothing else, in each of its events: so they are few. ACTS is
text, so Python compiles it only for a job that may have asked; compiling it takes 2 ms.

Any call of PBS's may raise, and a hook that raises is as one that rejects: so each act returns why it rejects, or None,
and what it raises is caught in one place, at the end of this file.
"""
import os

import pbs

AUTO_QUEUES = []  # filled in by 'mpsctl pbs install': auto_queues of mpsd.toml
JOBS = "/run/mpsd/jobs"  # filled in by 'mpsctl pbs install'
LOOK_AGAIN = "/run/mpsd/look-again"  # filled in by 'mpsctl pbs install'

ACTS = r'''
import time

PROGRAMS = "/usr/bin"  # filled in by 'mpsctl pbs install'
OPTIONS = []  # filled in by 'mpsctl pbs install': ["--config", FILE] where it is not /etc/mpsd/mpsd.toml
LIMIT_S = 25  # filled in by 'mpsctl pbs install': above our own deadline; the hook's alarm is above twice this
MOM_WAITS_S = 1.2
ENV_LIMIT_S = 10
AGAIN_S = 60  # before the next try of a job
UNCOUNTED = 3  # mps-prologue and mpsctl env: nothing but the node can have failed the start
NOT_RUN = 126
STARTED = time.monotonic()
RANKS = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PALS_LOCAL_RANKID", "SLURM_LOCALID")
SIZES = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "PALS_LOCAL_SIZE")
LAUNCHERS = ("orted", "prted", "hydra_pmi_proxy", "hydra_bstrap_proxy", "pmi_proxy")
PASSED = RANKS + SIZES + ("CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY", "MPSD_JOB",
                  "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_SM_PARTITION",
                  "JAX_LOCAL_DEVICE_IDS")


def text(value):
    return "" if value is None else str(value)


def attribute(job, name):
    try:
        return text(getattr(job, name, None))
    except Exception:
        return ""  # what PBS does not tell us, nobody asked for


def log(line):
    """Our programs have written it into the node's log already, where PBS's own call raises."""
    try:
        pbs.logmsg(pbs.LOG_WARNING, line)
    except Exception:
        pass


def resource(job, name):
    try:
        return text(job.Resource_List[name])
    except Exception:
        return ""  # the site has no such resource


def is_sister(job):
    try:
        return not job.in_ms_mom()
    except Exception:
        return False


def is_subjob(job):
    return "[" in attribute(job, "id")


def last_line(file):
    file.seek(0)
    lines = file.read(65536).decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else ""


def memory_file(content=b""):
    """For a program's input or output. A pipe would be held open by whatever the program left behind, and a directory for
    temporary files may be full. None: there is none to be had."""
    try:
        if hasattr(os, "memfd_create"):
            file = os.fdopen(os.memfd_create("mpsd"), "w+b")
        else:
            import tempfile
            file = tempfile.TemporaryFile()
        file.write(content)
        file.seek(0)
        return file
    except OSError:
        return None


def call(program, arguments, limit, env=None, values=(), goes_on=None):
    """Runs one of our programs; returns its exit code, standard output and last line of standard error. NOT_RUN: it never ran.

    'values' can be longer than a command line: the program reads them from its standard input. One that 'goes_on' lets go on at
    the limit is not killed, and has a session of its own, since PBS kills the hook's group; its exit code is None then. One that
    may not has done nothing yet."""
    import subprocess
    words = [os.path.join(PROGRAMS, program)] + (["@-"] if values else []) + arguments
    given = memory_file(b"".join(value.encode("utf-8", "surrogateescape") + b"\0" for value in values)) if values else None
    out, err = memory_file(), memory_file()
    if values and given is None:
        return NOT_RUN, "", "mpsd: cannot tell '%s' of the job: no memory and no temporary directory" % program
    try:
        process = subprocess.Popen(words, stdin=given or subprocess.DEVNULL, stdout=out or subprocess.DEVNULL,
                                   stderr=err or subprocess.DEVNULL, env=env or {}, cwd="/", close_fds=True,
                                   start_new_session=goes_on is not None)
    except OSError as error:
        return NOT_RUN, "", "mpsd: cannot run '%s': %s" % (error.filename or program, error.strerror)
    try:
        code, late = process.wait(limit), None
    except subprocess.TimeoutExpired:
        if goes_on and goes_on():
            return None, "", ""
        os.killpg(process.pid, 9) if goes_on else process.kill()
        process.wait()
        code, late = NOT_RUN if goes_on else 2, "mpsd: %s did not end within %d s" % (program, limit)
    if out:
        out.seek(0)
    answer = out.read(1048576).decode("utf-8", "replace") if out else ""
    return code, answer, (last_line(err) if err else "") or late or ""


def mom_waits():
    """What is left of the time for which pbs_mom may wait. Seconds."""
    return max(0.3, STARTED + MOM_WAITS_S - time.monotonic())


def put_back(job, code):
    """Before a rejection. The server takes both values with it, from a sister and of a subjob as well, and no operator is needed."""
    values = [] if is_subjob(job) else [("Execution_Time", int(time.time()) + AGAIN_S)]
    if code in (1, UNCOUNTED, NOT_RUN):
        values.append(("run_count", 0))
    for name, value in values:
        try:
            setattr(job, name, value)
        except Exception:
            pass  # it is tried at once, or this try counts


def identity(job):
    return ["--", attribute(job, "id"), attribute(job, "euser"), attribute(job, "egroup")]


def shape(job):
    given = (("--select", attribute(job, "schedselect") or resource(job, "select")),
             ("--place", resource(job, "place")), ("--vnodes", attribute(job, "exec_vnode")))
    return [option + "=" + value for option, value in given if value]


def begin(event):
    job = event.job
    arguments = ["--scheduler", "openpbs", "--record", "--wait", "announced"] + OPTIONS + (["--sister"] if is_sister(job) else [])
    values = ["--account=" + attribute(job, "Account_Name"), "--resource=" + resource(job, "mps"),
              "--queue=" + attribute(job, "queue")] + shape(job)
    # Of a job that did not ask itself, execjob_launch knows by the directory that a start is under way.
    code, _, line = call("mps-prologue", arguments + identity(job), mom_waits(), values=values,
                         goes_on=lambda: asks or has_directory(attribute(job, "id")))
    if code is None:
        return None  # execjob_launch waits for it
    if line:
        log(line)
    # 1 is a refusal: recorded, and told in execjob_launch; where it could not be recorded it is told here
    if code == 0 or (code == 1 and environment(job, {}, [], mom_waits())[0] == 1):
        return None
    if is_subjob(job) and not is_sister(job):
        return None  # execjob_launch rejects
    clean(job, mom_waits())  # no launch will read what was recorded, and no end is promised
    put_back(job, code)
    return line or "mpsd: mps-prologue ended with %d" % code


def environment(job, variables, options, limit):
    variables = dict(variables, PBS_JOBID=attribute(job, "id"))
    arguments = ["env", "--shell", "json", "--job", attribute(job, "id")]
    return call("mpsctl", arguments + OPTIONS + options, limit, variables)


def json_of(answer):
    import json
    return json.loads(answer or "{}")


def launch(event):
    job, env = event.job, event.env
    inherited = {name: text(env[name]).replace("\\,", ",") for name in PASSED if name in env}
    code, answer, line = environment(job, inherited, ["--main"] if is_main_shell(event) else [], LIMIT_S)
    changes = json_of(answer) if code == 0 else {}
    if code == 0 and changes.get("MPSD_JOB") is None and asked(job, settled=True):
        # Of what its user did wrong there is a record.
        code, line = UNCOUNTED, "mpsd: job %s asked for MPS and has none on this node" % attribute(job, "id")
    if code != 0:
        line = line or "mpsd: mpsctl env ended with %d" % code
        if code != 1 and is_first_process(event):
            if is_subjob(job):
                time.sleep(max(0, STARTED + LIMIT_S - time.monotonic()))
            put_back(job, code)
            job.rerun()
        return None if tells_itself(event, line) else tell(line)
    if line and is_main_shell(event) and not is_launcher(event):
        tell(line)  # what the user should know although the job runs
    for name, value in changes.items():
        if value is None:
            remove(env, name)
        else:
            env[name] = value.replace(",", "\\,")
    return None


def tells_itself(event, line):
    """Puts a program in the place of a task that TM starts, which says 'line' and fails: what the hook itself writes for a task on
    another node than the job's first reaches nobody, and whoever asked for the task reads a number."""
    if is_main_shell(event):
        return False
    try:
        event.progname = "/bin/sh"
        event.argv = ["sh", "-c", 'printf "%s\\n" "$1" >&2; exit 1', "mpsd", line]
    except Exception:
        return False
    return True


def tell(line):
    """Writes 'line' into the job's own error file, which execjob_launch has as descriptor 2."""
    try:
        os.write(2, (line + "\n").encode("utf-8", "replace"))
    except OSError:
        pass  # PBS has it as the reason of the rejection
    return line


def request(job):
    """What the job asked for, read by mpsctl: exit code, {"account", "resource", perhaps "note"}, line."""
    arguments = ["pbs", "request"]
    values = ["--account=" + attribute(job, "Account_Name"), "--resource=" + resource(job, "mps")]
    code, answer, line = call("mpsctl", arguments + OPTIONS, ENV_LIMIT_S, values=values)
    return code, json_of(answer) if code == 0 else {}, line


def asked(job, settled=False):
    """Of a job whose account holds the letters "mps". What cannot be told did: no such job runs without MPS by mistake. 'settled':
    its record tells of no MPS, so 'auto' gave it none."""
    code, said, _ = request(job)
    mode = said["resource"].split("+")[0] if code == 0 else ""
    return code != 0 or mode not in ("", "off") and not (settled and mode == "auto" and has_directory(attribute(job, "id")))


def is_launcher(event):
    return os.path.basename(text(getattr(event, "progname", ""))) in LAUNCHERS


def is_main_shell(event):
    """The job's main shell is task 1 of the first node; it and an MPI launcher's daemon have no rank, their ranks come later."""
    return is_launcher(event) or is_first_process(event)


def is_first_process(event):
    try:
        return not is_sister(event.job) and int(event.env.get("PBS_TASKNUM", "1")) == 1
    except Exception:
        return False


def remove(env, name):
    if name not in env:
        return
    try:
        del env[name]
    except Exception:
        env[name] = ""


def clean(job, limit):
    arguments = ["--scheduler", "openpbs", "--strict"] + OPTIONS + identity(job)
    code, _, line = call("mps-epilogue", arguments, limit, goes_on=(lambda: True) if limit < LIMIT_S else None)
    if code is None:
        line = "mpsd: job %s: mps-epilogue goes on" % attribute(job, "id")
    elif code not in (0, NOT_RUN):
        line = "mpsd: mps-epilogue ended with %d: %s" % (code, line or "it says nothing")
    if line:
        log(line)


def end(event):
    clean(event.job, LIMIT_S)  # in a process of its own, for which the mom does not wait


def abort(event):
    clean(event.job, mom_waits())


def queuejob(event):
    """Optional: refuses at qsub, and moves our words from the account into the resource 'mps'."""
    job = event.job
    code, said, line = request(job)
    if code == 1:
        return line
    if said.get("note"):
        log("mpsd: " + said["note"])
    if code == 0 and said["resource"]:  # any other code is this host's, not the user's: the nodes look at it again
        job.Resource_List["mps"] = said["resource"]
        job.Account_Name = said["account"] or None
    return None


BY_EVENT = (("EXECJOB_BEGIN", begin), ("EXECJOB_LAUNCH", launch), ("EXECJOB_END", end), ("EXECJOB_ABORT", abort), ("QUEUEJOB", queuejob))


def failed(event, act, error):
    """What the hook makes of its own failure: nothing stays behind, a job that did not ask goes on, and one that asked never
    runs without MPS. An end has nobody to reject for, and what qsub is not told the nodes look at again."""
    line = "mpsd: the hook failed: %s: %s" % (type(error).__name__, error)
    log(line)
    if act is begin:
        if is_subjob(event.job) and not is_sister(event.job):
            return None
        clean(event.job, mom_waits())
        put_back(event.job, NOT_RUN)
        return line
    if act is launch and (asked(event.job) or is_automatic):
        return tell(line)
    return None


def run(event):
    """Does what the event asks for; returns why to reject it, or None."""
    act = None
    try:
        kind = event.type
        act = next((act for name, act in BY_EVENT if kind == getattr(pbs, name, None)), None)
        return act(event) if act else None
    except Exception as error:
        return failed(event, act, error)
'''


def has_directory(name):
    return len(name) > 40 or os.path.lexists(os.path.join(JOBS, name))  # a longer name is shortened: only mpsctl knows how


event, asks, is_automatic, why = pbs.event(), False, False, None
try:
    asks = "mps" in str(event.job.Account_Name).lower()
except Exception:
    pass  # PBS does not tell it: the job did not ask
try:
    asks = asks or event.job.Resource_List["mps"] not in (None, "")
except Exception:
    pass  # the site has no such resource
try:
    # The site asks for MPS for this job with GPUs; after its begin, only if that left anything here.
    if AUTO_QUEUES and str(event.job.queue) in AUTO_QUEUES and "ngpus=" in str(event.job.exec_vnode):
        is_automatic = event.type == getattr(pbs, "EXECJOB_BEGIN", None) or has_directory(str(event.job.id))
except Exception:
    pass
try:
    # After any job, mps-epilogue looks again at what hung in the driver: nothing else may do so on a node without our timer.
    if asks or is_automatic or event.type == getattr(pbs, "EXECJOB_END", None) and os.path.lexists(LOOK_AGAIN):
        exec(compile(ACTS, "mpsd.py", "exec"), globals())
        why = run(event)  # noqa: F821
except Exception as error:
    try:
        pbs.logmsg(pbs.LOG_WARNING, "mpsd: the hook failed: %s: %s" % (type(error).__name__, error))
    except Exception:
        pass
if why:
    event.reject(why)
try:
    event.accept()
except Exception:
    pass  # who does neither accepts
