"""The module that OpenPBS gives to a hook, as far as ours uses it. accept() and reject() end the hook by SystemExit.

FAILING names what raises SystemError, as pbs.logmsg of 23.06.06 does under Python 3.10 and newer: a function, an attribute of the
event or of its job, or "env[]" and "Resource_List[]" for an assignment."""
import os

QUEUEJOB, EXECJOB_BEGIN, EXECJOB_LAUNCH, EXECJOB_END, EXECJOB_ABORT = 1, 2, 4, 8, 16
EXECJOB_PROLOGUE, EXECJOB_EPILOGUE, EXECHOST_STARTUP = 32, 64, 128
ND_DEFAULT_EXCL = "default_excl"
size = place = str
LOG_ERROR, LOG_WARNING, LOG_DEBUG = 3, 4, 7

FAILING = set()
log = []
_event = None


def fail(name):
    if name in FAILING:
        raise SystemError("PY_SSIZE_T_CLEAN macro must be defined for '#' formats: " + name)


class Resources(dict):
    """Unset resources read as None."""

    def __getitem__(self, name):
        return self.get(name)

    def __setitem__(self, name, value):
        fail("Resource_List[]")
        super().__setitem__(name, value)


class Environment(dict):
    def __setitem__(self, name, value):
        fail("env[]")
        super().__setitem__(name, value)


class Job:
    def __getattribute__(self, name):
        fail(name)
        return super().__getattribute__(name)

    def __init__(self, given):
        self.__dict__.update({name: value for name, value in given.items() if name not in ("Resource_List", "ms")})
        self.Resource_List = Resources(given.get("Resource_List", {}))
        self._ms = given["ms"]

    def in_ms_mom(self):
        return self._ms

    def rerun(self):
        self.__dict__["_rerun"] = True

    def __setattr__(self, name, value):
        fail(name + "=")
        super().__setattr__(name, value)


class vnode:
    def __init__(self, name):
        self.resources_available = {}


class Event:
    def __getattribute__(self, name):
        fail(name)
        return super().__getattribute__(name)

    def __init__(self, given):
        self.type = globals()[given["event"].upper()]
        self.vnode_list = {name: vnode(name) for name in given["vnodes"]}
        if self.type != EXECHOST_STARTUP:
            self.job = Job(given["job"])
        self.env = Environment(given.get("env", {}))
        self.progname, self.argv = given.get("progname", ""), given.get("argv", [])
        self.verdict, self.message = None, ""

    def accept(self):
        self.verdict = "accept"
        raise SystemExit(0)

    def reject(self, message=""):
        self.verdict, self.message = "reject", message
        raise SystemExit(1)


def event():
    return _event


def get_local_nodename():
    return os.uname()[1]


def logmsg(level, text):
    fail("logmsg")
    log.append([level, text])
