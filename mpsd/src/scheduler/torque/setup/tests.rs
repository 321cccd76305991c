//! The line in a mom's configuration.

use super::*;

#[test]
fn a_line_is_added_once_behind_what_stands_and_taken_out_again() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config");
    fs::write(&config, "$logevent 255").unwrap();
    assert_eq!(
        append(&config, "$job_starter /x"),
        Ok(()),
        "run as root, as CI does"
    );
    assert_eq!(
        fs::read_to_string(&config).unwrap(),
        format!("$logevent 255\n{ABOVE}\n$job_starter /x\n")
    );
    std::os::unix::fs::symlink(&config, dir.path().join("link")).unwrap();
    assert!(append(&dir.path().join("link"), "$job_starter /x").is_err());
}
