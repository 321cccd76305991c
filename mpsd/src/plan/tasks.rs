//! A job with tasks that could silently run outside its MPS.

use batch::Unattached;
use mpsd_core::Failure;
use mpsd_core::config::WarnOrRefuse;
use mpsd_core::failure::{Evidence, Fault, Refusal};

/// The line for the job's own error file if it may run all the same.
///
/// # Errors
/// A refusal on the job's first node, where its user reads it. On a Torque sister nobody would read
/// it, so there it is a fault of the configuration.
pub fn decide(
    missing: Option<Unattached>,
    sister: bool,
    rule: WarnOrRefuse,
) -> Result<Option<String>, Failure> {
    let Some(Unattached {
        why,
        remedy,
        no_way_round,
    }) = missing
    else {
        return Ok(None);
    };
    if rule == WarnOrRefuse::Warn && !no_way_round {
        return Ok(Some(format!(
            "{why}: such a task runs outside MPS unless it is 'mpsctl exec -- COMMAND'"
        )));
    }
    if sister {
        let why = format!("{why}; it needs {remedy}");
        return Err(Fault::new(Evidence::Configuration, "tasks started by TM", why).into());
    }
    Err(Refusal::new("MPS", why, format!("after {remedy}")).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_where_the_user_reads_it_and_told_where_the_site_lets_it_run() {
        use WarnOrRefuse::{Refuse, Warn};
        let decided = |no_way_round, sister, rule| {
            let (why, remedy) = ("no starter".into(), "'mpsctl pbs install'".into());
            let missing = Unattached {
                why,
                remedy,
                no_way_round,
            };
            decide(Some(missing), sister, rule)
        };
        assert_eq!(decide(None, false, Refuse), Ok(None));
        let told = decided(false, false, Warn).unwrap();
        assert!(told.unwrap().starts_with("no starter: "));
        // If other nodes have no daemon, tasks there have nothing to attach to.
        for refused in [decided(false, false, Refuse), decided(true, false, Warn)] {
            let why = "MPS: no starter; allowed: after 'mpsctl pbs install'";
            assert_eq!(refused.unwrap_err().to_string(), why);
        }
        // No user reads what a sister node says, and it is not drained for a request.
        let failure = decided(false, true, Refuse).unwrap_err();
        let is_misconfiguration = matches!(&failure, Failure::Fault(fault) if !fault.drains());
        assert!(is_misconfiguration, "{failure}");
    }
}
