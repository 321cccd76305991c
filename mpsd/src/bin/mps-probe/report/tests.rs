use super::*;
use clap::Parser as _;

fn options(given: &[&str]) -> Options {
    Options::parse_from([&["mps-probe"], given].concat())
}

fn gpu() -> GpuReport {
    GpuReport {
        index: 0,
        facts: Facts {
            uuid: "GPU-200b4359-5562-4e0e-ed46-88b581af6524".into(),
            name: "NVIDIA H200".into(),
            sms: 32,
            total_mib: 143_155,
            free_mib: 2927,
            mps_attribute: None,
        },
        mps_listed: Some(true),
        allocatable_mib: Some(2816),
        allocation_capped: false,
        memset_ok: true,
    }
}

#[test]
fn the_recorded_client_meets_what_its_job_asked_for() {
    let expected = options(&["--require-mps", "--expect-sms=32", "--expect-mem=3072"]);
    assert_eq!(unmet(&gpu(), &expected), Vec::<String>::new());
}

#[test]
fn a_client_that_found_no_daemon_is_told_apart() {
    let alone = GpuReport {
        facts: Facts {
            sms: 132,
            ..gpu().facts
        },
        mps_listed: Some(false),
        allocatable_mib: Some(3328),
        ..gpu()
    };
    let expected = options(&["--require-mps", "--expect-sms=32", "--expect-mem=3072"]);
    let found = unmet(&alone, &expected);
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(
        found[0].ends_with("the context does not go through MPS"),
        "{found:?}"
    );
    assert!(
        found[1].contains("132 multiprocessors are visible, 32 were expected"),
        "{found:?}"
    );
    assert!(
        found[2].contains("3328 MiB could be allocated, 2816 to 3072 were expected"),
        "{found:?}"
    );
}

#[test]
fn memory_that_does_not_hold_what_was_written_is_never_fine() {
    let broken = GpuReport {
        memset_ok: false,
        ..gpu()
    };
    assert_eq!(unmet(&broken, &options(&[])).len(), 1);
}

#[test]
fn less_than_the_margin_below_the_limit_is_not_enough() {
    let expected = options(&["--expect-mem=3136"]);
    assert_eq!(unmet(&gpu(), &expected).len(), 1);
}
