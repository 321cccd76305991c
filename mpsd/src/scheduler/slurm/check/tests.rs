use super::*;

#[test]
fn a_private_tmp_and_shm_hide_nothing_but_a_run_dir_in_them() {
    assert!(matches!(container(Path::new("/run/mpsd")), Good(_)));
    for hidden in ["/tmp/mpsd", "/dev/shm/mpsd", "/var/tmp/mpsd"] {
        assert!(container(Path::new(hidden)).is_wrong(), "{hidden}");
    }
}

#[test]
fn a_timeout_of_slurms_that_shortens_our_own_is_told() {
    let findings = |lines: &str| {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("slurm.conf");
        fs::write(&file, lines).unwrap();
        let conf = Conf::find(Some(&file), &crate::scheduler::host::ThisHost).unwrap();
        timeouts(&conf, Duration::from_secs(20))
    };
    assert!(findings("").is_empty());
    assert!(findings("PrologEpilogTimeout=0\n").is_empty());
    assert!(findings("PrologTimeout=65534\n").is_empty());
    // Its own key goes before that of both.
    let both = findings("PrologTimeout=26\nPrologEpilogTimeout=9\n");
    assert!(matches!(&both[..], [Good(_), Wrong(_)]), "{both:?}");
    let both = findings("prologepilogtimeout=300\nEpilogTimeout=25\n");
    assert!(matches!(&both[..], [Good(_), Better(_)]), "{both:?}");
    let one = findings("EpilogTimeout=25\n");
    assert!(
        matches!(&one[..], [Better(text)] if text.contains("EpilogTimeout is 25 s") && text.contains("26 s leave it all")),
        "{one:?}"
    );
}
