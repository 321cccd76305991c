"""mpsd for OpenPBS: gives a job its own MPS on execjob_begin and takes it away on execjob_end and execjob_abort.

Imported by 'mpsctl pbs install', which fills in the first three constants. No decision is made here: the job's attributes go
to mps-prologue, mps-epilogue and mpsctl as they stand, and their exit codes are obeyed. A job whose account does not
hold the letters "mps" and that has no resource 'mps' cannot have asked and starts no program of ours.

execjob_prologue and execjob_epilogue are left alone: a hook there would silence the site's classic scripts.
A reject in execjob_begin is retried, with nothing for the user to read; so a refusal is recorded there and told in
execjob_launch, where descriptor 2 is the job's own error file. Only what is the node's rejects in execjob_begin.
"""
import json
import os
import subprocess
import tempfile

import pbs

PROGRAMS = "/usr/bin"  # filled in by 'mpsctl pbs install'
OPTIONS = []  # filled in by 'mpsctl pbs install': ["--config", FILE] where it is not /etc/mpsd/mpsd.toml

LIMIT_S = 25  # filled in by 'mpsctl pbs install': above our own deadline; the hook's alarm is above twice this
ENV_LIMIT_S = 10
RANKS = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PALS_LOCAL_RANKID", "SLURM_LOCALID")
LAUNCHERS = ("orted", "prted", "hydra_pmi_proxy", "hydra_bstrap_proxy", "pmi_proxy")
PASSED = RANKS + ("CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY", "MPSD_JOB",
                  "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")


def text(value):
    return "" if value is None else str(value)


def attribute(job, name):
    return text(getattr(job, name, None))


def resource(job, name):
    try:
        return text(job.Resource_List[name])
    except Exception:
        return ""  # the site has no such resource


def may_have_asked(job):
    return "mps" in attribute(job, "Account_Name").lower() or resource(job, "mps") != ""


def is_sister(job):
    try:
        return not job.in_ms_mom()
    except Exception:
        return False


def call(program, arguments, limit, env=None):
    """Runs one of our programs; returns its exit code, standard output and last line of standard error.

    The answer goes through files: a pipe would be held open by whatever the program left behind."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            done = subprocess.run([os.path.join(PROGRAMS, program)] + arguments, stdin=subprocess.DEVNULL, stdout=out,
                                  stderr=err, env=env or {}, cwd="/", timeout=limit, close_fds=True)
            code = done.returncode
        except subprocess.TimeoutExpired:
            return 2, "", "mpsd: %s did not end within %d s" % (program, limit)
        except OSError as error:
            return 2, "", "mpsd: cannot run '%s': %s" % (error.filename or program, error.strerror)
        out.seek(0)
        err.seek(0)
        lines = err.read(65536).decode("utf-8", "replace").strip().splitlines()
        return code, out.read(1048576).decode("utf-8", "replace"), lines[-1] if lines else ""


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
        pbs.logmsg(pbs.LOG_WARNING, line)
    # 1 is a refusal: recorded, and told in execjob_launch; where it could not be recorded it is told here
    if code == 0 or (code == 1 and environment(job, {}, [])[0] == 1):
        event.accept()
    clean(job)  # no launch will read what was recorded, and no end is promised
    event.reject(line or "mpsd: mps-prologue ended with %d" % code)


def environment(job, variables, options):
    variables = dict(variables, PBS_JOBID=attribute(job, "id"))
    arguments = ["env", "--shell", "json", "--job", attribute(job, "id")]
    return call("mpsctl", arguments + OPTIONS + options, ENV_LIMIT_S, variables)


def launch(event):
    job, env = event.job, event.env
    inherited = {name: text(env[name]).replace("\\,", ",") for name in PASSED if name in env}
    code, answer, line = environment(job, inherited, ["--main"] if is_main_shell(event) else [])
    changes = json.loads(answer or "{}") if code == 0 else {}
    if code == 0 and changes.get("MPSD_JOB") is None and asked(job):
        code, line = 1, "mpsd: job %s asked for MPS and has none on this node" % attribute(job, "id")
    if code != 0:
        line = line or "mpsd: mpsctl env ended with %d" % code
        os.write(2, (line + "\n").encode("utf-8", "replace"))
        event.reject(line)
    for name, value in changes.items():
        if value is None:
            remove(env, name)
        else:
            env[name] = value.replace(",", "\\,")
    event.accept()


def request(job):
    """What the job asked for, read by mpsctl: exit code, {"account", "resource"}, line."""
    arguments = ["pbs", "request", "--account=" + attribute(job, "Account_Name"), "--resource=" + resource(job, "mps")]
    code, answer, line = call("mpsctl", arguments + OPTIONS, ENV_LIMIT_S)
    return code, json.loads(answer) if code == 0 else {}, line


def asked(job):
    said = request(job)[1].get("resource", "")
    return said != "" and said.split("+")[0] != "off"


def is_main_shell(event):
    """The job's main shell is task 1 of the first node; it and an MPI launcher's daemon have no rank, their ranks come later."""
    if os.path.basename(text(getattr(event, "progname", ""))) in LAUNCHERS:
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
    _, _, line = call("mps-epilogue", ["--scheduler", "openpbs"] + OPTIONS + identity(job), LIMIT_S)
    if line:
        pbs.logmsg(pbs.LOG_WARNING, line)


def end(event):
    clean(event.job)
    event.accept()


def queuejob(event):
    """Optional: refuses at qsub, and moves our words from the account into the resource 'mps'."""
    job = event.job
    code, said, line = request(job)
    if code == 1:
        event.reject(line)
    if code == 0 and said["resource"]:  # any other code is this host's, not the user's: the nodes look at it again
        job.Resource_List["mps"] = said["resource"]
        job.Account_Name = said["account"] or None
    event.accept()


def main():
    event = pbs.event()
    if not may_have_asked(event.job):
        event.accept()
    for name, act in (("EXECJOB_BEGIN", begin), ("EXECJOB_LAUNCH", launch), ("EXECJOB_END", end), ("EXECJOB_ABORT", end),
                      ("QUEUEJOB", queuejob)):
        if event.type == getattr(pbs, name, None):
            act(event)
    event.accept()


main()
