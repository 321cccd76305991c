use super::*;

#[test]
fn a_private_tmp_and_shm_hide_nothing_but_a_run_dir_in_them() {
    assert!(matches!(container(Path::new("/run/mpsd")), Good(_)));
    for hidden in ["/tmp/mpsd", "/dev/shm/mpsd", "/var/tmp/mpsd"] {
        assert!(container(Path::new(hidden)).is_wrong(), "{hidden}");
    }
}
