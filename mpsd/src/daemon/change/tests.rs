use super::*;

/// What the prologue of a release before `mpsctl set` tells `mpsd`.
const EARLIER: &str = r#"{"job": "1.srv", "uid": 1, "control": "/c", "nvml": "/n", "daemons": [], "start_ms": 1, "command_ms": 1,
    "over_limit": "log"}"#;

#[test]
fn without_a_ceiling_from_root_nothing_is_set() {
    let wanted = ClientLimits {
        threads: "100".parse().ok(),
        memory: Vec::new(),
    };
    let mut spec: Spec = serde_json::from_str(EARLIER).unwrap();
    let refused = set(&spec, &mut [], &wanted);
    assert!(
        matches!(&refused, Err(Unready::Refused { why, .. }) if why.contains("says no ceilings")),
        "{refused:?}"
    );
    spec.most.threads = "100".parse().ok();
    assert_eq!(set(&spec, &mut [], &wanted).map(|set| set.len()), Ok(1));
    spec.most.threads = "50".parse().ok();
    assert!(set(&spec, &mut [], &wanted).is_err());
}
