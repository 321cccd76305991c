//! Where Torque lives, when its mom kills a prologue, and the words of its pbsnodes.

use crate::scheduler::pbs::installation::Product;
use mpsd_core::job::Scheduler;

/// Torque. Its mom fires 10 s before `$prologalarm` where that is above 10 (recorded: 15 kills at 5 s, the default of 300
/// at 290). `-r` would show a node down until the mom's next status; `-c` does not (recorded).
pub(crate) static PRODUCT: Product = Product {
    scheduler: Scheduler::Torque,
    title: "Torque",
    homes: ["/var/spool/torque", "/var/lib/torque"],
    commands: &[
        "/usr/local/bin",
        "/usr/bin",
        "/opt/torque/bin",
        "/usr/local/sbin",
        "/usr/sbin",
    ],
    conf: None,
    alarm_s: 300,
    early_s: 10,
    note_option: "-N",
    no_note: "n",
    online_option: "-c",
    comments: true,
};
