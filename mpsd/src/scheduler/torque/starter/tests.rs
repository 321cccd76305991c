//! What is read of a mom's configuration.

use super::*;

#[test]
fn a_configuration_is_read_as_the_mom_reads_it() {
    let config = "$job_starter /a\n# $job_starter /b\n\t$Job_Starter\t/c d # e\n$job_starter_x /f\n";
    let all: Vec<&str> = values(config, STARTER).collect();
    assert_eq!(all, ["/a", "/c d"]);
    assert!(names(config, Path::new("/a")) && names(config, Path::new("/c")));
    assert!(!names(config, Path::new("/b")) && !names("$job_starter /ab", Path::new("/a")));
    for (word, privileged) in [
        ("True", true),
        ("", true),
        ("maybe", true),
        ("off", false),
        ("0", false),
    ] {
        let line = format!("$job_starter_run_privileged {word}\n");
        assert_eq!(may_be_privileged(&line), privileged, "{word}");
    }
    assert!(!may_be_privileged(""));
    assert!(may_be_privileged(
        "$job_starter_run_privileged no\n$job_starter_run_privileged"
    ));
}
