use super::*;
use crate::scheduler::testing::Paper;

/// A host whose units stand so: active and enabled, one after the other.
fn host(service: [&str; 2], timer: [&str; 2]) -> Paper {
    let said = [("mpsd.service", service), ("mpsd-reconcile.timer", timer)];
    said.into_iter()
        .fold(Paper::default(), |host, (unit, [active, enabled])| {
            host.command(
                &format!("/usr/bin/systemctl is-active {unit}"),
                0,
                &format!("{active}\n"),
            )
            .command(
                &format!("/usr/bin/systemctl is-enabled {unit}"),
                0,
                &format!("{enabled}\n"),
            )
        })
}

fn said(host: &Paper) -> Vec<String> {
    units(host, true).iter().map(ToString::to_string).collect()
}

#[test]
fn a_unit_that_is_off_is_wrong_and_the_line_says_what_switches_it_on() {
    let good = host(["active", "enabled"], ["active", "enabled"]);
    assert_eq!(
        said(&good),
        [
            "OK    mpsd.service is active",
            "OK    mpsd-reconcile.timer is active"
        ]
    );
    let off = host(["active", "enabled"], ["inactive", "disabled"]);
    assert_eq!(
        said(&off)[1],
        "FAIL  mpsd-reconcile.timer is inactive: nobody takes down what a killed job left; systemctl enable --now \
         mpsd-reconcile.timer"
    );
    let once = host(["active", "disabled"], ["active", "enabled"]);
    assert_eq!(
        said(&once)[0],
        "WARN  mpsd.service is active and will not be after the next boot (disabled); systemctl enable mpsd.service"
    );
    // A oneshot is inactive after a good run.
    let run = |state: &str| {
        let good = host(["active", "enabled"], ["active", "enabled"]);
        good.command(
            "/usr/bin/systemctl is-failed mpsd-reconcile.service",
            u8::from(state != "failed").into(),
            &format!("{state}\n"),
        )
    };
    assert_eq!(said(&run("inactive")), said(&good));
    assert_eq!(
        said(&run("failed"))[2],
        "WARN  mpsd-reconcile.service failed in its last run: what a job left, or a drain of ours that is not delivered, may stay; \
         'journalctl -u mpsd-reconcile.service' says why"
    );
    assert!(said(&Paper::default())[0].starts_with("WARN  mpsd.service: systemd does not say"));
    assert!(units(&good, false)[0].to_string().contains("mpsctl reconcile"));
}

#[test]
fn a_node_whose_driver_is_loaded_and_whose_gpu_is_gone_is_no_login_host() {
    let login = without_gpu(&Paper::default()).to_string();
    assert_eq!(login, "OK    no NVIDIA GPU here: no job gets MPS on this host");
    let lost = Paper::default().file(
        "/proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX x86_64\n",
    );
    let lost = without_gpu(&lost).to_string();
    assert!(lost.starts_with("WARN  NVIDIA's driver is loaded"), "{lost}");
}
