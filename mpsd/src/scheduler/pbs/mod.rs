//! What Torque and OpenPBS share: where a PBS lives, `pbsnodes`, `qstat`, and the verbs of `mpsctl pbs`.

mod check;
pub(crate) mod control;
pub(crate) mod files;
pub(crate) mod installation;
pub(crate) mod known_jobs;
pub(crate) mod qmgr;
mod request;
pub(crate) mod setup;
pub(crate) mod status;
pub(crate) mod trial;
pub(crate) mod verbs;

use super::batch_system::Located;
use super::control::Controller;
use super::host::ThisHost;
use super::known_jobs::KnownJobs;
use mpsd_core::JobId;

impl Located for installation::Installation {
    /// The ids of a PBS have a server's name in them.
    fn may_own(&self, job: &JobId) -> bool {
        self.is_here() && job.as_str().contains(|c: char| !c.is_ascii_digit() && c != '.')
    }

    /// Torque's file of the subjob `57[1].srv` is `57-1.srv.JB`.
    fn has_file_of(&self, job: &JobId) -> bool {
        let plain = job.as_str().replace('[', "-").replace(']', "");
        let plain = self.job_file(job).with_file_name(format!("{plain}.JB"));
        [self.job_file(job), plain]
            .iter()
            .any(|file| file.symlink_metadata().is_ok())
    }

    fn known_jobs(&self, node: &str) -> Box<dyn KnownJobs> {
        Box::new(known_jobs::Jobs {
            pbs: self.clone(),
            node: node.to_owned(),
        })
    }

    fn controller(&self, node: &str) -> Box<dyn Controller> {
        Box::new(control::PbsNode::new(self.clone(), node, &ThisHost))
    }

    fn longest_reason(&self) -> usize {
        control::LONGEST_REASON
    }
}
