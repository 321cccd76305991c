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

    fn missing(no_way_round: bool) -> Option<Unattached> {
        Some(Unattached {
            why: "no starter".into(),
            remedy: "'mpsctl pbs install'".into(),
            no_way_round,
        })
    }

    #[test]
    fn refused_where_the_user_reads_it_and_told_where_the_site_lets_it_run() {
        use WarnOrRefuse::{Refuse, Warn};
        assert_eq!(decide(None, false, Refuse), Ok(None));
        let refused = decide(missing(false), false, Refuse).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "MPS: no starter; allowed: after 'mpsctl pbs install'"
        );
        let told = decide(missing(false), false, Warn).unwrap();
        assert!(told.unwrap().starts_with("no starter: "));
        // If other nodes have no daemon, tasks there have nothing to attach to.
        let alone = decide(missing(true), false, Warn).unwrap_err();
        assert_eq!(alone.exit_code(), 1);
        // No user reads what a sister node says, and it is not drained for a request.
        let failure = decide(missing(false), true, Refuse).unwrap_err();
        assert!(
            matches!(&failure, Failure::Fault(fault) if !fault.drains()),
            "{failure}"
        );
    }
}
