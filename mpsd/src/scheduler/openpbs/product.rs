//! Where OpenPBS and PBS Professional live, and the words of their pbsnodes.

use crate::scheduler::pbs::installation::Product;
use mpsd_core::job::Scheduler;

/// OpenPBS and PBS Professional.
pub(crate) static PRODUCT: Product = Product {
    scheduler: Scheduler::OpenPbs,
    title: "OpenPBS or PBS Professional",
    homes: ["/var/spool/pbs", "/var/spool/PBS"],
    commands: &["/opt/pbs/bin", "/usr/bin", "/opt/pbs/sbin"],
    conf: Some("/etc/pbs.conf"),
    alarm_s: 30,
    early_s: 0,
    note_option: "-C",
    no_note: "",
    online_option: "-r",
    comments: false,
};
