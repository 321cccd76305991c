"""A ReFrame check: a user's job gets its MPS through the site's scheduler.

Run it as that user, where jobs are submitted: 'reframe -c /usr/share/mpsd/examples/reframe_mpsd.py -r'. Words of the site for srun or qsub
go with it: '-S words=--partition=gpu,--nodelist=gpu001'.
"""
import reframe as rfm
import reframe.utility.sanity as sn
import reframe.utility.typecheck as typ


@rfm.simple_test
class MpsSelftest(rfm.RunOnlyRegressionTest):
    descr = "mpsctl selftest: attached and limited"
    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    words = variable(typ.List[str], value=[])
    # It submits jobs of its own.
    local = True
    executable = "/usr/bin/mpsctl"
    time_limit = "15m"

    @run_before("run")
    def with_words(self):
        self.executable_opts = ["selftest", "--", *self.words]

    @sanity_function
    def is_ok(self):
        return sn.assert_found(r"^OK  +selftest", self.stdout)
