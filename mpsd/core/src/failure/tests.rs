use super::*;

#[test]
fn a_users_mistake_and_a_broken_node_have_different_codes() {
    let refusal = Failure::from(Refusal::new("MPS_THREADS=101", "not a percentage", "1 to 100"));
    assert_eq!(refusal.exit_code(), 1);
    assert_eq!(
        refusal.to_string(),
        "MPS_THREADS=101: not a percentage; allowed: 1 to 100"
    );
    let fault = Failure::from(Fault::new(Evidence::Nvml, "NVML", "no answer within 5 s"));
    assert_eq!(fault.exit_code(), 2);
    assert_eq!(Failure::from(Undetermined::new("mpsd", "killed")).exit_code(), 2);
}

#[test]
fn a_bad_configuration_does_not_drain() {
    assert!(!Fault::new(Evidence::Configuration, "f", "unknown key").drains());
    assert!(Fault::new(Evidence::Survivor, "mps-server 691", "state D").drains());
}

#[test]
fn a_user_reads_that_a_broken_configuration_is_not_his() {
    let broken = Fault::new(Evidence::Configuration, "mpsd.toml:1:1", "unknown key");
    let told =
        "MPS is misconfigured on n1 (not your job), tell your administrator: mpsd.toml:1:1: unknown key";
    assert_eq!(broken.to_user("n1").to_string(), told);
    assert_eq!(
        Fault::new(Evidence::Nvml, "NVML", "dead")
            .to_user("n1")
            .to_string(),
        "NVML: dead"
    );
}
