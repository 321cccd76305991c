"""mpsd for OpenPBS: gives a job its own MPS on execjob_begin and takes it away on execjob_end and execjob_abort.

'mpsctl pbs install' imports it and fills in the first constants. The hook decides nothing: it passes the job's attributes
to mps-prologue, mps-epilogue and mpsctl, and obeys their exit codes. A job whose account does not hold the letters "mps"
and that has no resource 'mps' cannot have asked. It starts none of our programs, unless it inherits the variables of another
job's MPS.

Where the site offers shares, each GPU is a vnode HOST[UUID] (exechost_startup). It has one of the host's ngpus and all its
mps_shares. 'default_excl' keeps whole-GPU jobs and jobs with shares apart: those ask to share, by queuejob. That event also
groups their vnodes by mps_gpu, or the scheduler would take the shares of one job from several GPUs.

The hook has no execjob_prologue and no execjob_epilogue: they would silence the site's classic scripts.
PBS retries a job that execjob_begin rejects, and its user reads nothing. So a refusal is recorded there, and told in
execjob_launch, where descriptor 2 is the job's own error file. Other failures reject in execjob_begin. PBS holds a job
after 21 tries. A try that only the node can have failed does not count.

While a hook on execjob_begin or execjob_abort runs, pbs_mom starts and ends no other job. So these two return within
MOM_WAITS_S, and what takes longer continues without them. A start then leaves its outcome in the job's record.
execjob_launch, which runs in the job's own process, waits for it. PBS tries a rejected job again at once, so the hook moves
the job's Execution_Time, and the job waits in state W. A subjob in state W breaks its array, so for subjobs
execjob_launch rejects instead, after a wait.

Each event of a job that did not ask runs the lines outside of ACTS, so they are few. ACTS is text: Python compiles it, in
2 ms, only for a job that may have asked.

Any call into PBS may raise, and a hook that raises rejects the job. So an act returns why it rejects, or None, and 'run'
catches what it raises.
"""
import os

import pbs

AUTO_QUEUES = []  # filled in by 'mpsctl pbs install': auto_queues of mpsd.toml
JOBS = "/run/mpsd/jobs"  # filled in by 'mpsctl pbs install'
LOOK_AGAIN = "/run/mpsd/look-again"  # filled in by 'mpsctl pbs install'
SHARES = 0  # filled in by 'mpsctl pbs install': mps_shares of each GPU

ACTS = r'''
import errno
import time

PROGRAMS = "/usr/bin"  # filled in by 'mpsctl pbs install'
OPTIONS = []  # filled in by 'mpsctl pbs install': ["--config", FILE] if it is not /etc/mpsd/mpsd.toml
LIMIT_S = 25  # filled in by 'mpsctl pbs install': above our own deadline; the hook's alarm is above twice this
MOVES = 0  # filled in by 'mpsctl pbs install': queuejob moves our words
MOM_WAITS_S = 1.2
ENV_LIMIT_S = 10
AGAIN_S = 60  # before the next try of a job
UNCOUNTED = 3  # exit code of mps-prologue and mpsctl env: only the node can have failed the start
NOT_RUN = 126
MISSING = 127  # the node lacks our package
ALARM_MARGIN_S = 1.5
STARTED = time.monotonic()
RANKS = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PALS_LOCAL_RANKID", "SLURM_LOCALID")
SIZES = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "PALS_LOCAL_SIZE")
LAUNCHERS = ("orted", "prted", "hydra_pmi_proxy", "hydra_bstrap_proxy", "pmi_proxy")
PASSED = RANKS + SIZES + ("CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY", "MPSD_JOB",
                  "MPSD_DEVICES", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
                  "JAX_LOCAL_DEVICE_IDS")


def text(value):
    return "" if value is None else str(value)


def attribute(job, name):
    try:
        return text(getattr(job, name, None))
    except Exception:
        return ""  # PBS does not tell it: the job did not ask


def log(line):
    """May fail: our programs write their lines into the node's log themselves."""
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
    """For a program's input or output. A process that the program leaves behind would hold a pipe open, and a directory for
    temporary files may be full. None: there is no memory and no such directory."""
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


def alarm_s():
    """The alarm of this hook by the mom's copy, beside which it runs. At the alarm PBS ends the hook, and the user reads nothing."""
    try:
        with open("../mpsd.HK") as file:
            set_to = [line[len("alarm="):] for line in file if line.startswith("alarm=")]
        return int(set_to[0]) if set_to else 30
    except (OSError, ValueError):
        return None


def before_alarm(limit):
    """At most 'limit' seconds, and why they are fewer. A manager may have set the alarm below our own deadline."""
    alarm = alarm_s()
    left = limit if alarm is None else STARTED + alarm - ALARM_MARGIN_S - time.monotonic()
    return (limit, "") if left >= limit else (max(0.3, left), ": the hook's alarm is %d s" % alarm)


def lacks(program):
    return "mpsd: job %s: node '%s' lacks '%s' of the package mpsd; allowed: a node that has it, or a job without MPS" % (
        attribute(pbs.event().job, "id"), os.uname()[1], program)


def call(program, arguments, limit, env=None, values=(), goes_on=None):
    """Runs one of our programs; returns its exit code, standard output and last line of standard error. NOT_RUN: it never ran.

    'values' can be longer than a command line: the program reads them from its standard input. At the limit 'goes_on' says
    whether the program may continue; its exit code is None then. It has a session of its own, because PBS kills the hook's
    group. If it may not continue, it has done nothing yet."""
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
        if error.errno == errno.ENOENT:
            return MISSING, "", lacks(words[0])
        return NOT_RUN, "", "mpsd: cannot run '%s': %s" % (error.filename or program, error.strerror)
    limit, why = before_alarm(limit)
    try:
        code, late = process.wait(limit), None
    except subprocess.TimeoutExpired:
        if goes_on and goes_on():
            return None, "", ""
        os.killpg(process.pid, 9) if goes_on else process.kill()
        process.wait()
        code, late = NOT_RUN if goes_on else 2, "mpsd: %s did not end within %d s%s" % (program, limit, why)
    if out:
        out.seek(0)
    answer = out.read(1048576).decode("utf-8", "replace") if out else ""
    return code, answer, (last_line(err) if err else "") or late or ""


def mom_waits():
    """For how many seconds pbs_mom may still wait."""
    return max(0.3, STARTED + MOM_WAITS_S - time.monotonic())


def put_back(job, code):
    """Before a rejection: delays the next try, and takes this one out of the count if it is not the job's. The server takes
    both values with the rejection, also from a sister and for a subjob, and asks for no operator's rights."""
    values = [] if is_subjob(job) else [("Execution_Time", int(time.time()) + AGAIN_S)]
    if code in (1, UNCOUNTED, NOT_RUN):
        values.append(("run_count", 0))
    for name, value in values:
        try:
            setattr(job, name, value)
        except Exception:
            pass  # then PBS tries it at once, or counts this try


def identity(job):
    return ["--", attribute(job, "id"), attribute(job, "euser"), attribute(job, "egroup")]


def shape(job):
    given = (("--select", attribute(job, "schedselect") or resource(job, "select")),
             ("--place", resource(job, "place")), ("--vnodes", attribute(job, "exec_vnode")),
             ("--hosts", attribute(job, "exec_host2")), ("--shares", text(SHARES or None)))
    return [option + "=" + value for option, value in given if value]


def prologue(job, options, limit, goes_on=None):
    arguments = ["--scheduler", "openpbs", "--record", "--wait", "announced"] + OPTIONS + options
    values = ["--account=" + attribute(job, "Account_Name"), "--resource=" + resource(job, "mps"),
              "--queue=" + attribute(job, "queue")] + shape(job)
    return call("mps-prologue", arguments + identity(job), limit, values=values, goes_on=goes_on)


def begin(event):
    job = event.job
    # If the job did not ask itself, only its directory tells execjob_launch that a start is under way.
    code, _, line = prologue(job, ["--sister"] if is_sister(job) else [], mom_waits(),
                             lambda: asks or has_directory(attribute(job, "id")))
    if code is None:
        return None  # execjob_launch waits for it
    if line:
        log(line)
    if code == MISSING:
        return None  # nothing is done here, and no further try would be better; execjob_launch refuses a job that asked
    # 1 is a refusal: recorded, and told in execjob_launch. If it could not be recorded, it is told here.
    if code == 0 or (code == 1 and environment(job, {}, [], mom_waits())[0] == 1):
        return None
    if is_subjob(job) and not is_sister(job):
        return None  # execjob_launch rejects
    clean(job, mom_waits())  # no execjob_launch will read the record, and PBS may run no execjob_end
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
    if not (asks or is_automatic):
        return forget(job, env)
    inherited = passed(env)
    options = ["--main"] * is_main_shell(event) + ["--first"] * is_first_process(event)
    code, answer, line = environment(job, inherited, options, LIMIT_S)
    changes = json_of(answer) if code == 0 else {}
    if code == 0 and changes.get("MPSD_JOB") is None and asked(job, settled=True):
        # The user's mistake would have left a record.
        code, line = UNCOUNTED, "mpsd: job %s asked for MPS and has none on this node" % attribute(job, "id")
        prologue = os.path.join(PROGRAMS, "mps-prologue")
        if not os.path.exists(prologue):
            code, line = MISSING, lacks(prologue)
    if code != 0 and not (asks and asked(job)):
        if line:
            log(line)
        return forget(job, env)
    if code != 0:
        line = line or "mpsd: mpsctl env ended with %d" % code
        if code not in (1, MISSING) and is_first_process(event):
            if is_subjob(job):
                time.sleep(before_alarm(max(0, STARTED + LIMIT_S - time.monotonic()))[0])
            put_back(job, code)
            job.rerun()
        return None if tells_itself(event, line) else tell(line)
    if line and not asks:
        leave_out(job)
    elif line and is_main_shell(event) and not is_launcher(event):
        tell(line)  # a warning: the job runs
    change(env, changes)
    return None


def leave_out(job):
    """Ends the MPS that the site gave the job: its script does not go with it. PBS sends the script after execjob_begin."""
    clean(job, LIMIT_S)
    prologue(job, ["--scripted"], LIMIT_S)  # it records and logs why


def passed(env):
    return {name: text(env[name]).replace("\\,", ",") for name in PASSED if name in env}


def forget(job, env):
    """Removes what another job's MPS left in the environment of one that did not ask: 'qsub -V' inside a job."""
    if "MPSD_JOB" not in env:
        return
    inherited = passed(env)
    code, answer, _ = environment(job, inherited, [], LIMIT_S)
    change(env, json_of(answer) if code == 0 else without_our_programs(job, inherited))


def without_our_programs(job, inherited):
    """The same on a node that lacks them. The other job's list of GPUs is 'OURS' or 'OURS:BEFORE'; pbs_cgroups writes a list
    of this job's own."""
    changes = {name: None for name in inherited if name.startswith(("CUDA_MPS_", "MPSD_", "JAX_"))}
    ours, was_set, before = inherited.get("MPSD_DEVICES", "").partition(":")
    if "MPSD_DEVICES" in inherited and inherited.get("CUDA_VISIBLE_DEVICES") == ours and not is_named(job):
        changes["CUDA_VISIBLE_DEVICES"] = before if was_set else None
    return changes


def is_named(job):
    try:
        with open("../../../aux/%s.env" % attribute(job, "id")) as file:
            return any(line.startswith("CUDA_VISIBLE_DEVICES=") for line in file)
    except (OSError, ValueError):
        return False


def change(env, changes):
    for name, value in changes.items():
        if value is None:
            remove(env, name)
        else:
            env[name] = value.replace(",", "\\,")


def tells_itself(event, line):
    """Replaces a task that TM starts by a program that prints 'line' and fails. On other nodes than the job's first, no user
    reads the hook's own output. A rejection reaches the task's starter only as a number."""
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
    """What the job asked for, read by mpsctl: exit code, {"account", "resource"}, line."""
    arguments = ["pbs", "request"]
    values = ["--account=" + attribute(job, "Account_Name"), "--resource=" + resource(job, "mps")]
    code, answer, line = call("mpsctl", arguments + OPTIONS, ENV_LIMIT_S, values=values)
    return code, json_of(answer) if code == 0 else {}, line


def asked(job, settled=False):
    """Whether a job with the letters "mps" in its account asked. If mpsctl cannot tell, it did: such a job must not run without
    MPS by mistake. Without mpsctl, its key must be there. 'settled': its record has no MPS, so 'auto' gave it none."""
    code, said, _ = request(job)
    if code == MISSING:
        import re
        return bool(resource(job, "mps") or re.search(r"(^|[,;\s])mps(_[a-z]+)?=", attribute(job, "Account_Name"), re.I))
    mode = said["resource"].split("+")[0] if code == 0 else ""
    return code != 0 or mode not in ("", "off") and not (settled and mode == "auto" and has_directory(attribute(job, "id")))


def is_launcher(event):
    return os.path.basename(text(getattr(event, "progname", ""))) in LAUNCHERS


def is_main_shell(event):
    """The job's main shell is task 1 of the first node. It and an MPI launcher's daemon have no rank; they start the ranks."""
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
    elif code not in (0, NOT_RUN, MISSING):
        line = "mpsd: mps-epilogue ended with %d: %s" % (code, line or "it says nothing")
    if line:
        log(line)


def end(event):
    clean(event.job, LIMIT_S)  # PBS runs this event in a process of its own, so the mom does not wait


def abort(event):
    clean(event.job, mom_waits())


def startup(event):
    """Makes a vnode of each GPU. What a hook writes here overrides a manager's own ngpus of the host."""
    code, answer, line = call("mpsctl", ["pbs", "vnodes"] + OPTIONS, LIMIT_S)
    gpus = json_of(answer)["gpus"] if code == 0 else []
    with open("../resourcedef") as file:
        known = file.read()
    if not gpus or "mps_gpu" not in known:  # PBS would take a resource that the mom does not know yet for text
        return log(line or "mpsd: no GPU of this node has mps_shares")
    host, vnodes = pbs.get_local_nodename(), event.vnode_list
    for name in set(list(vnodes.keys()) + [host]):
        set_vnode(vnodes[name], ngpus=0, mps_gpu=",".join(gpus))
    for gpu in gpus:
        name = "%s[%s]" % (host, gpu)
        vnodes[name] = pbs.vnode(name)
        vnodes[name].sharing = pbs.ND_DEFAULT_EXCL
        set_vnode(vnodes[name], ncpus=0, mem=pbs.size("0kb"), ngpus=1, mps_shares=SHARES, mps_gpu=gpu)


def set_vnode(vnode, **resources):
    for name, value in resources.items():
        try:
            vnode.resources_available[name] = value
        except Exception:
            if name != "ngpus":  # the site has no such resource
                raise


def place_shares(job):
    """Why a job's request for shares is refused, or None."""
    select = resource(job, "select")
    most = [int(word[len(WORD):]) for word in select.replace("+", ":").split(":") if word.startswith(WORD)]
    if max(most) > SHARES:
        return "mpsd: %s%d: a GPU has %d shares; allowed: 1 to %d in a chunk, or ngpus" % (WORD, max(most), SHARES, SHARES)
    place = (resource(job, "place") or "free").split(":")
    if not {"shared", "excl", "exclhost"} & set(place):
        place.append("shared")
    count = select.split(":")[0]
    if "+" not in select and (count == "1" or not count.isdigit()) and not any(word.startswith("group=") for word in place):
        place.append("group=mps_gpu")
    job.Resource_List["place"] = pbs.place(":".join(place))
    return None


def queuejob(event):
    """Optional: refuses at qsub, and moves our words from the account into the resource 'mps'."""
    job = event.job
    why = place_shares(job) if has_shares else None
    if why or not (asks and MOVES):
        return why
    code, said, line = request(job)
    if code == 1:
        return line
    if code == 0 and said["resource"]:  # any other code is a failure of this host: the nodes read the request again
        job.Resource_List["mps"] = said["resource"]
        job.Account_Name = said["account"] or None
    return None


BY_EVENT = (("EXECJOB_BEGIN", begin), ("EXECJOB_LAUNCH", launch), ("EXECJOB_END", end), ("EXECJOB_ABORT", abort), ("QUEUEJOB", queuejob),
            ("EXECHOST_STARTUP", startup))


def failed(event, act, error):
    """Handles a failure of the hook itself. Nothing stays behind. A job that did not ask continues, and a job that asked never
    runs without MPS. An end has nothing to reject, and after a failure in qsub the nodes read the request again."""
    line = "mpsd: the hook failed: %s: %s" % (type(error).__name__, error)
    log(line)
    if act is begin:
        if is_subjob(event.job) and not is_sister(event.job):
            return None
        clean(event.job, mom_waits())
        put_back(event.job, NOT_RUN)
        return line
    if act is launch and asks and asked(event.job):
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


def is_mistaken(event):
    """Whether the job asks by a variable, as 'qsub -v MPS=true' does. It asks for nothing: a script may have such a variable."""
    if event.type != getattr(pbs, "EXECJOB_LAUNCH", None) or event.env.get("PBS_TASKNUM") != "1" or not event.job.in_ms_mom():
        return False
    return str(event.env.get("MPS")).lower() in ("true", "on", "auto", "per-node", "per-gpu", "own")


def has_directory(name):
    return len(name) > 40 or os.path.lexists(os.path.join(JOBS, name))  # a longer name is shortened: only mpsctl knows how


def gpus_of_shares(vnodes):
    """The GPUs of this host in the vnodes of a job. No other hook gives a job with shares a GPU, also without MPS."""
    host = pbs.get_local_nodename()
    names = [part.strip("()").split(":")[0] for part in vnodes.split("+")]
    return [name[len(host) + 1:-1] for name in names if name.startswith(host + "[GPU-")]


WORD = "mps_shares="
event, asks, surely, is_automatic, why = pbs.event(), False, False, False, None
try:
    # A mom's job has vnodes and no select.
    has_shares = SHARES and WORD in str(event.job.exec_vnode or event.job.Resource_List["select"])
    if has_shares and event.type == getattr(pbs, "EXECJOB_LAUNCH", None):
        event.env["CUDA_VISIBLE_DEVICES"] = "\\,".join(gpus_of_shares(str(event.job.exec_vnode)))
except Exception:
    has_shares = False
try:
    account = str(event.job.Account_Name).lower()
    asks, surely = "mps" in account, "mps=" in account
except Exception:
    pass  # PBS does not tell it: the job did not ask
try:
    if event.job.Resource_List["mps"] not in (None, ""):
        asks = surely = True
except Exception:
    pass  # the site has no such resource
try:
    # The site asks for MPS for a job with GPUs. After execjob_begin only the job's directory here counts, because its queue may
    # have left AUTO_QUEUES; if its name does not tell, the queue.
    of_queue = AUTO_QUEUES and str(event.job.queue) in AUTO_QUEUES and "ngpus=" in str(event.job.exec_vnode)
    if event.type == getattr(pbs, "EXECJOB_BEGIN", None):
        is_automatic = of_queue
    elif of_queue or len(str(event.job.id)) <= 40:
        is_automatic = has_directory(str(event.job.id))
except Exception:
    pass
try:
    # 'qsub -V' inside a job with MPS brings that job's variables along.
    inherits = event.type == getattr(pbs, "EXECJOB_LAUNCH", None) and "MPSD_JOB" in event.env
except Exception:
    inherits = False
try:
    if not asks and is_mistaken(event):
        os.write(2, b"mpsd: the variable MPS of this job (qsub -v, -V) asks for no MPS; allowed: qsub -A MPS=on\n")
except Exception:
    pass  # it is advice
try:
    # After any job, mps-epilogue looks again at what hung in the driver, because a node may lack our timer.
    if (asks or is_automatic or inherits or event.type == getattr(pbs, "EXECJOB_END", None) and os.path.lexists(LOOK_AGAIN)
            or has_shares and event.type == getattr(pbs, "QUEUEJOB", None)
            or SHARES and event.type == getattr(pbs, "EXECHOST_STARTUP", None)):
        exec(compile(ACTS, "mpsd.py", "exec"), globals())
        why = run(event)  # noqa: F821
except Exception as error:
    line = "mpsd: the hook failed: %s: %s" % (type(error).__name__, error)
    try:
        pbs.logmsg(pbs.LOG_WARNING, line)
        # A job that surely asked must not run without MPS by mistake. An end has nothing to reject.
        if surely and event.type in (pbs.EXECJOB_BEGIN, pbs.EXECJOB_LAUNCH):
            why = line
    except Exception:
        pass
if why:
    event.reject(why)
try:
    event.accept()
except Exception:
    pass  # a hook that does neither accepts
