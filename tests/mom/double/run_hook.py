"""run_hook.py HOOK EVENT RESULT: one hook on one event, as the mom's Python does it."""
import json
import os
import sys
import traceback

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import pbs  # noqa: E402

hook, given, result = sys.argv[1:]
with open(given) as file:
    given = json.load(file)
pbs._event = pbs.Event(given)
pbs.FAILING.update(given["failing"])
for name in [name for name in sys.modules if name.split(".")[0] == "json"]:
    del sys.modules[name]  # the hook's own import of it is seen
for name in given["failing"]:
    if name.startswith("import "):
        sys.modules[name[len("import "):]] = None  # an import of it raises
before = set(sys.modules)
try:
    exec(compile(open(hook).read(), hook, "exec"), {"__name__": "__main__"})
except SystemExit:
    pass
except BaseException:
    # A hook that raises an error is a rejected event.
    pbs._event.verdict, pbs._event.message = "error", traceback.format_exc()
imported = sorted(set(sys.modules) - before)
pbs.FAILING.clear()
event = pbs._event
job = getattr(event, "job", None)
of_job = vars(job) if job else {}
vnodes = {name: {key: str(value) for key, value in its.resources_available.items()} for name, its in event.vnode_list.items()}
for name, its in event.vnode_list.items():
    if hasattr(its, "sharing"):
        vnodes[name]["sharing"] = its.sharing
with open(result, "w") as file:
    json.dump({"verdict": event.verdict or "accept", "message": event.message, "env": event.env, "log": pbs.log,
               "run_count": of_job.get("run_count"), "execution_time": of_job.get("Execution_Time"),
               "rerun": "_rerun" in of_job, "imported": imported, "progname": event.progname, "argv": event.argv,
               "account": of_job.get("Account_Name"), "resources": of_job.get("Resource_List", {}), "vnodes": vnodes}, file)
