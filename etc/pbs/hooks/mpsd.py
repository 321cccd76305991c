"""mpsd for OpenPBS: gives a job its own MPS on execjob_begin and takes it away on execjob_end and execjob_abort.

Imported by 'mpsctl pbs install', which fills in the first constants. No decision is made here: the job's attributes go
to mps-prologue, mps-epilogue and mpsctl as they stand, and their exit codes are obeyed. A job whose account does not
hold the letters "mps" and that has no resource 'mps' cannot have asked and starts no program of ours.

execjob_prologue and execjob_epilogue are left alone: a hook there would silence the site's classic scripts.
A reject in execjob_begin is retried, with nothing for the user to read; so a refusal is recorded there and told in
execjob_launch, where descriptor 2 is the job's own error file. Only what is the node's rejects in execjob_begin. PBS holds a job
after 21 such tries; so those that failed by the node's fault are not counted.

A job that did not ask pays for reading this file and nothing else: what only others need is imported where it is used.

Any call of PBS's may raise, and a hook that raises is as one that rejects: so each act returns why it rejects, or None,
and what it raises is caught in one place, 'main'.
"""
import os
import time

import pbs

PROGRAMS = "/usr/bin"  # filled in by 'mpsctl pbs install'
OPTIONS = []  # filled in by 'mpsctl pbs install': ["--config", FILE] where it is not /etc/mpsd/mpsd.toml

LOOK_AGAIN = "/run/mpsd/look-again"  # filled in by 'mpsctl pbs install'
LIMIT_S = 25  # filled in by 'mpsctl pbs install': above our own deadline; the hook's alarm is above twice this
GRACE_S = 5  # of it, for our programs to end by themselves
ENV_LIMIT_S = 10
UNCOUNTED = 3  # mps-prologue: the node's fault
NOT_RUN = 126
STARTED = time.monotonic()
RANKS = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PALS_LOCAL_RANKID", "SLURM_LOCALID")
SIZES = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "PALS_LOCAL_SIZE")
LAUNCHERS = ("orted", "prted", "hydra_pmi_proxy", "hydra_bstrap_proxy", "pmi_proxy")
PASSED = RANKS + SIZES + ("CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY", "MPSD_JOB",
                  "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_SM_PARTITION")


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


def may_have_asked(job):
    return "mps" in attribute(job, "Account_Name").lower() or resource(job, "mps") != ""


def waits_for_a_look(kind):
    """After any job, mps-epilogue looks again at what hung in the driver: nothing else may do so on a node without our timer."""
    return kind == getattr(pbs, "EXECJOB_END", None) and os.path.lexists(LOOK_AGAIN)


def is_sister(job):
    try:
        return not job.in_ms_mom()
    except Exception:
        return False


def last_line(file):
    file.seek(0)
    lines = file.read(65536).decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else ""


def hold_back(line):
    """PBS tries again at once, and holds the job after 21 tries: the programs wait themselves, this is for where none could."""
    time.sleep(max(0, STARTED + LIMIT_S - GRACE_S - time.monotonic()))
    return line


def call(program, arguments, limit, env=None):
    """Runs one of our programs; returns its exit code, standard output and last line of standard error. NOT_RUN: it never ran.

    The answer goes through files: a pipe would be held open by whatever the program left behind."""
    import subprocess
    import tempfile
    try:
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            try:
                done = subprocess.run([os.path.join(PROGRAMS, program)] + arguments, stdin=subprocess.DEVNULL, stdout=out,
                                      stderr=err, env=env or {}, cwd="/", timeout=limit, close_fds=True)
            except subprocess.TimeoutExpired:
                return 2, "", last_line(err) or "mpsd: %s did not end within %d s" % (program, limit)
            out.seek(0)
            return done.returncode, out.read(1048576).decode("utf-8", "replace"), last_line(err)
    except OSError as error:
        return NOT_RUN, "", "mpsd: cannot run '%s': %s" % (error.filename or program, error.strerror)


def identity(job):
    return ["--", attribute(job, "id"), attribute(job, "euser"), attribute(job, "egroup")]


def shape(job):
    given = (("--select", attribute(job, "schedselect") or resource(job, "select")),
             ("--place", resource(job, "place")), ("--vnodes", attribute(job, "exec_vnode")))
    return [option + "=" + value for option, value in given if value]


def begin(event):
    job = event.job
    arguments = ["--scheduler", "openpbs", "--record"] + OPTIONS + (["--sister"] if is_sister(job) else [])
    arguments += ["--account=" + attribute(job, "Account_Name"), "--resource=" + resource(job, "mps")]
    code, _, line = call("mps-prologue", arguments + shape(job) + identity(job), LIMIT_S)
    if line:
        log(line)
    # 1 is a refusal: recorded, and told in execjob_launch; where it could not be recorded it is told here
    if code == 0 or (code == 1 and environment(job, {}, [])[0] == 1):
        return None
    clean(job)  # no launch will read what was recorded, and no end is promised
    line = line or "mpsd: mps-prologue ended with %d" % code
    if code in (1, UNCOUNTED, NOT_RUN):
        forget_tries(job)
    return hold_back(line) if code in (1, NOT_RUN) else line


def forget_tries(job):
    """The mom tells the server this number with the rejection, from a sister as well, and of a subjob of an array as well."""
    try:
        job.run_count = 0
    except Exception:
        pass  # this try counts, then


def environment(job, variables, options):
    variables = dict(variables, PBS_JOBID=attribute(job, "id"))
    arguments = ["env", "--shell", "json", "--job", attribute(job, "id")]
    return call("mpsctl", arguments + OPTIONS + options, ENV_LIMIT_S, variables)


def json_of(answer):
    import json
    return json.loads(answer or "{}")


def launch(event):
    job, env = event.job, event.env
    inherited = {name: text(env[name]).replace("\\,", ",") for name in PASSED if name in env}
    code, answer, line = environment(job, inherited, ["--main"] if is_main_shell(event) else [])
    changes = json_of(answer) if code == 0 else {}
    if code == 0 and changes.get("MPSD_JOB") is None and asked(job):
        code, line = 1, "mpsd: job %s asked for MPS and has none on this node" % attribute(job, "id")
    if code != 0:
        line = line or "mpsd: mpsctl env ended with %d" % code
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
    arguments = ["pbs", "request", "--account=" + attribute(job, "Account_Name"), "--resource=" + resource(job, "mps")]
    code, answer, line = call("mpsctl", arguments + OPTIONS, ENV_LIMIT_S)
    return code, json_of(answer) if code == 0 else {}, line


def asked(job):
    said = request(job)[1].get("resource", "")
    return said != "" and said.split("+")[0] != "off"


def is_launcher(event):
    return os.path.basename(text(getattr(event, "progname", ""))) in LAUNCHERS


def is_main_shell(event):
    """The job's main shell is task 1 of the first node; it and an MPI launcher's daemon have no rank, their ranks come later."""
    if is_launcher(event):
        return True
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


def clean(job):
    code, _, line = call("mps-epilogue", ["--scheduler", "openpbs", "--strict"] + OPTIONS + identity(job), LIMIT_S)
    if code not in (0, NOT_RUN):
        line = "mpsd: mps-epilogue ended with %d: %s" % (code, line or "it says nothing")
    if line:
        log(line)


def end(event):
    clean(event.job)


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


ACTS = (("EXECJOB_BEGIN", begin), ("EXECJOB_LAUNCH", launch), ("EXECJOB_END", end), ("EXECJOB_ABORT", end), ("QUEUEJOB", queuejob))


def failed(event, act, error):
    """What the hook makes of its own failure: nothing stays behind, a job that did not ask goes on, and one that asked never
    runs without MPS. An end has nobody to reject for, and what qsub is not told the nodes look at again."""
    line = "mpsd: the hook failed: %s: %s" % (type(error).__name__, error)
    log(line)
    if act is begin:
        clean(event.job)
        return hold_back(line)
    if act is launch and asked(event.job):
        return tell(line)
    return None


def main():
    event, act, why = pbs.event(), None, None
    try:
        kind = event.type
        if may_have_asked(event.job) or waits_for_a_look(kind):
            act = next((act for name, act in ACTS if kind == getattr(pbs, name, None)), None)
            why = act(event) if act else None
    except Exception as error:
        why = failed(event, act, error)
    if why:
        event.reject(why)
    try:
        event.accept()
    except Exception:
        pass  # who does neither accepts


main()
