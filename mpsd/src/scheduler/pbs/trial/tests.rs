use super::*;

const QSUB: Qsub = Qsub {
    is_its: |_| true,
    place: &["-l", "nodes=1:gpus=1"],
};

fn typed(own: &[&str]) -> Typed {
    let own: Vec<String> = own.iter().map(|word| (*word).to_owned()).collect();
    QSUB.submit(&Order {
        name: "mpsd-selftest",
        own: &own,
        programs: "/opt/it's".as_ref(),
        output: "/home/u/out",
    })
}

#[test]
fn the_users_account_and_the_request_are_one_word() {
    let before = "-N mpsd-selftest -j oe -o /home/u/out -S /bin/sh -l walltime=00:05:00";
    for (own, after) in [
        (&[][..], "-A MPS=true,MPS_THREADS=50,MPS_MEM=1G -l nodes=1:gpus=1"),
        (
            &["-A", "proj", "-q", "gpu"],
            "-A proj,MPS=true,MPS_THREADS=50,MPS_MEM=1G -l nodes=1:gpus=1 -q gpu",
        ),
        (
            &["-Aproj", "-l", "nodes=1:gpus=2"],
            "-A proj,MPS=true,MPS_THREADS=50,MPS_MEM=1G -l nodes=1:gpus=2",
        ),
    ] {
        assert_eq!(typed(own).arguments.join(" "), format!("{before} {after}"));
    }
}

#[test]
fn the_job_attaches_the_probe_and_quotes_its_words() {
    let dir = r"/opt/it'\''s";
    assert_eq!(
        typed(&[]).input,
        format!("exec '{dir}/mpsctl' exec -- '{dir}/mps-probe' '--json' '--alloc=2048'\n")
    );
}

#[test]
fn a_job_is_over_when_it_is_told_so_or_not_known_any_more() {
    for (answer, over) in [
        ("Job Id: 1.s\n    job_state = C\n", true),
        ("Job Id: 1.s\n    job_state = F\n", true),
        ("Job Id: 1.s\n    job_state = E\n", false),
        ("Job Id: 1.s\n    job_state = R\n", false),
        ("qstat: Unknown Job Id 1.s\n", true),
        (
            "qstat: 1.s Job has finished, use -x or -H to obtain historical job information\n",
            true,
        ),
        ("qstat: cannot connect to server s (errno=15010)\n", false),
    ] {
        assert_eq!(QSUB.is_over(answer), over, "{answer}");
    }
}
