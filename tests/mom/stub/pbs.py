"""The module that OpenPBS gives to a hook, as far as ours uses it. accept() and reject() end the hook by SystemExit."""
QUEUEJOB, EXECJOB_BEGIN, EXECJOB_LAUNCH, EXECJOB_END, EXECJOB_ABORT = 1, 2, 4, 8, 16
EXECJOB_PROLOGUE, EXECJOB_EPILOGUE = 32, 64
LOG_ERROR, LOG_WARNING, LOG_DEBUG = 3, 4, 7

log = []
_event = None


class Resources(dict):
    """Unset resources read as None."""

    def __getitem__(self, name):
        return self.get(name)


class Job:
    def __init__(self, given):
        self.__dict__.update({name: value for name, value in given.items() if name not in ("Resource_List", "ms")})
        self.Resource_List = Resources(given.get("Resource_List", {}))
        self._ms = given["ms"]

    def in_ms_mom(self):
        return self._ms


class Event:
    def __init__(self, given):
        self.type = globals()[given["event"].upper()]
        self.job = Job(given["job"])
        self.env = dict(given.get("env", {}))
        self.progname = given.get("progname", "")
        self.verdict, self.message = None, ""

    def accept(self):
        self.verdict = "accept"
        raise SystemExit(0)

    def reject(self, message=""):
        self.verdict, self.message = "reject", message
        raise SystemExit(1)


def event():
    return _event


def logmsg(level, text):
    log.append([level, text])
