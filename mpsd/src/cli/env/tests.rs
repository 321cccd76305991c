//! What each shell reads.

use super::*;
use mpsd_core::environment::{JOB, VISIBLE_DEVICES};
use std::path::Path;

#[test]
fn each_shell_reads_what_is_printed_for_it() {
    let changes = [
        Change {
            name: JOB,
            value: Some("it's 4!".to_owned()),
        },
        Change {
            name: VISIBLE_DEVICES,
            value: None,
        },
    ];
    assert_eq!(
        Shell::Sh.write(&changes),
        "export MPSD_JOB='it'\\''s 4!'\nunset CUDA_VISIBLE_DEVICES\n"
    );
    assert_eq!(
        Shell::Csh.write(&changes),
        "setenv MPSD_JOB 'it'\\''s 4\\!';\nunsetenv CUDA_VISIBLE_DEVICES;\n"
    );
    assert_eq!(
        Shell::Fish.write(&changes),
        "set -gx MPSD_JOB 'it\\'s 4!';\nset -e CUDA_VISIBLE_DEVICES;\n"
    );
    assert_eq!(
        Shell::Json.write(&changes),
        "{\"CUDA_VISIBLE_DEVICES\":null,\"MPSD_JOB\":\"it's 4!\"}\n"
    );
    assert_eq!(Shell::Sh.write(&[]), "");
}

#[test]
fn outside_a_job_nothing_is_printed() {
    let caller = Caller {
        config: Path::new("/nonexistent"),
        job: None,
        env: &|_| None,
        uid: 1000,
        main: false,
    };
    let env = |shell| {
        Env {
            job: None,
            shell,
            container: None,
            main: false,
        }
        .run(&caller)
    };
    assert_eq!(env(Shell::Sh), Ok(String::new()));
    assert_eq!(env(Shell::Json), Ok("{}\n".to_owned()));
}
