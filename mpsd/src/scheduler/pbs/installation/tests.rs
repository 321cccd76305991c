//! What is read of a mom's configuration and of /etc/pbs.conf.

use super::*;

#[test]
fn the_last_alarm_of_the_config_counts() {
    assert_eq!(
        prolog_alarm("$logevent 255\n$prologalarm 15\n# $prologalarm 3\n$prologalarm 60\n"),
        Some(60)
    );
    assert_eq!(prolog_alarm("$prologalarm x\n"), None);
}

#[test]
fn the_moms_own_home_goes_first() {
    let conf =
        Conf::parse("PBS_SERVER=vm\nPBS_HOME=/var/spool/pbs\nPBS_MOM_HOME=/local/pbs\nPBS_EXEC=/opt/pbs\n");
    assert_eq!(conf.home, Some(PathBuf::from("/local/pbs")));
    assert_eq!(conf.exec, Some(PathBuf::from("/opt/pbs")));
    assert_eq!(Conf::parse("PBS_HOME=relative").home, None);
}

#[test]
fn names_of_a_node_with_and_without_domain() {
    assert!(same_node("vm", "vm.example.org") && same_node("VM", "vm"));
    assert!(!same_node("vm.a", "vm.b") && !same_node("vm1", "vm") && !same_node("", ""));
}
