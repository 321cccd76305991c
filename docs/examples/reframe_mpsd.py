"""A check of ReFrame's: every node gives jobs an MPS. Run it as 'reframe -c reframe_mpsd.py -r --distribute=idle'."""
import reframe as rfm
import reframe.utility.sanity as sn


@rfm.simple_test
class MpsDoctorCheck(rfm.RunOnlyRegressionTest):
    descr = "mpsctl doctor finds nothing that does not work"
    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    executable = "/usr/bin/mpsctl"
    executable_opts = ["doctor"]
    # Warnings end with 1, and a user's own job cannot see what root can: only a FAIL counts.
    time_limit = "2m"

    @sanity_function
    def nothing_fails(self):
        return sn.all([
            sn.assert_found(r"^OK    ", self.stdout),
            sn.assert_not_found(r"^FAIL  .*", self.stdout),
        ])
