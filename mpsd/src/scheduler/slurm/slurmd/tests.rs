//! What a running daemon tells of itself.

use super::*;

fn of(line: &str, letter: char) -> Option<String> {
    let arguments: Vec<String> = line.split(' ').map(str::to_owned).collect();
    option(&arguments, letter)
}

#[test]
fn options_as_getopt_reads_them() {
    for line in [
        "slurmd -D -N n1 -f /x/slurm.conf",
        "slurmd -DNn1 -vvf /x/slurm.conf",
        "slurmd --systemd -Nn1 -f/x/slurm.conf",
        "slurmd --conf-server host:6817 -N n1 -f /x/slurm.conf",
        "slurmd --conf -f -N n0 -N n1 --instance-id=a -f /x/slurm.conf",
        "slurmd -F -N n1 -f /x/slurm.conf",
    ] {
        let found = (of(line, 'N'), of(line, 'f'));
        let expected = (Some("n1".to_owned()), Some("/x/slurm.conf".to_owned()));
        assert_eq!(found, expected, "{line}");
    }
    for line in ["slurmd", "slurmd --systemd", "slurmd -d /N/f -L -f", "slurmd -N"] {
        assert_eq!((of(line, 'N'), of(line, 'f')), (None, None), "{line}");
    }
}

#[test]
fn the_path_that_a_program_is_built_with() {
    let text = b"\x7fELF\0can't find address, check slurm.conf\0/run/slurm/conf/slurm.conf\0/opt/s/etc/slurm.conf\0x";
    assert_eq!(path_in(text), Some("/opt/s/etc/slurm.conf".into()));
    assert_eq!(path_in(b"/run/slurm/conf/slurm.conf\0%s/slurm.conf\0"), None);
}
