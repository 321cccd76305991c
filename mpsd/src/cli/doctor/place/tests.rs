use super::*;

#[test]
fn a_path_that_the_vendor_cannot_take_is_wrong() {
    let usual = &directories(&Paths::new("/run/mpsd", "/var/lib/mpsd"))[0];
    assert_eq!(usual.status(), "OK", "{usual}");
    let long = format!("/run/{}", "x".repeat(30));
    let long = &directories(&Paths::new(long, "/var/lib/mpsd"))[0];
    assert!(
        long.is_wrong() && long.text().contains("may have 89 bytes"),
        "{long}"
    );
}

#[test]
fn what_confines_programs_is_told() {
    assert_eq!(selinux(None), None);
    assert_eq!(selinux(Some("0".to_owned())), None);
    assert!(matches!(selinux(Some("1".to_owned())), Some(Good(_))));
    let profile = |line: &str| apparmor(Some(format!("man_filter (enforce)\n{line}\n")));
    assert_eq!(profile("/usr/sbin/ntpd (enforce)"), None);
    assert_eq!(profile("/usr/bin/nvidia-cuda-mps-control (complain)"), None);
    let confined = profile("/usr/bin/nvidia-cuda-mps-control (enforce)");
    assert!(matches!(confined, Some(Better(text)) if text.contains("nvidia-cuda-mps-control (enforce)")));
}
