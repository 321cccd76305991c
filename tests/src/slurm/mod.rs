//! A throw-away Slurm on loopback: munge, a controller and several `slurmd`s on one host, in a
//! temporary directory with their own key, sockets and ports. It neither reads nor touches the
//! machine's own Slurm.
//!
//! What the bed relies on is recorded in the project's notes on a live Slurm 22.05: `slurmd -N`
//! (multiple-slurmd), GPUs as character devices of major 240 (local use), plugstack.conf read by
//! slurmd at its start only.
//!
//! Every process of the bed is a descendant of a small supervisor, the *warden* (`slurm-warden`).
//! It is a child subreaper, so a daemon that a job leaves behind becomes its child, whatever its
//! environment. When the test process drops the bed, panics, is interrupted or killed, the pipe to
//! the warden closes. Then the warden ends all its descendants by process id, unmounts and removes
//! what the bed made.

mod bed;
mod chosen;
mod commands;
mod conf;
mod host;
mod look;
mod options;
mod product;
mod simulated;
pub mod stamp;
mod state;
mod users;
mod warden;

/// What a site's slurm.conf has in each test of the packages; the rest is Debian's or Slurm's
/// default.
pub const SITE: &str = "\
ClusterName=site
SlurmUser=slurm
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
SelectType=select/cons_tres
SchedulerParameters=bf_interval=1,batch_sched_delay=0
SlurmdParameters=config_overrides
ReturnToService=2
GresTypes=gpu
";

pub use bed::Bed;
pub use chosen::{EXACT, is_chosen, is_chosen_in};
pub use commands::Client;
pub use conf::{Gpus, SIMULATED_MAJOR, Word, private_dev};
pub use host::{fresh_directory, program_beside, use_slurm_of};
pub use look::Snapshot;
pub use options::{CONFIGLESS, Options, unified};
pub use product::{PLUGIN, Product, install_plugin_double};
pub use simulated::{Changed, MODEL, Record, RecordGpu, SMS, Simulated, WITNESS, Witness};
pub use state::NodeState;
pub use users::{User, most_beds};
pub use warden::Request;
