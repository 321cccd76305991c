//! What is read of slurm.conf and plugstack.conf.

use super::*;
use crate::scheduler::testing::Paper;

#[test]
fn keys_in_any_case_and_the_last_one_counts() {
    let text = "PrologFlags=Alloc # PrologFlags=X\nNodeName=n Gres=gpu:1\nprologflags=Contain,NoHold\n";
    let host = Paper::default().file("/x/slurm.conf", text);
    let conf = Conf::find(Some(Path::new("/x/slurm.conf")), &host).unwrap();
    assert!(conf.lists("PrologFlags", "contain") && !conf.lists("PrologFlags", "Alloc"));
    assert_eq!(conf.snippet(), Path::new("/x/plugstack.conf.d/mpsd.conf"));
    assert_eq!(conf.include(), "include /x/plugstack.conf.d/*.conf");
}

#[test]
fn an_include_is_found_as_slurm_would() {
    let (base, snippet) = (
        Path::new("/etc/slurm/"),
        Path::new("/etc/slurm/plugstack.conf.d/mpsd.conf"),
    );
    for text in [
        "include /etc/slurm/plugstack.conf.d/*.conf",
        "include plugstack.conf.d/*.conf # ours too",
        "optional x.so\ninclude\t/etc/slurm/plugstack.conf.d/*\n",
        "include /etc/slurm/plugstack.conf.d/mpsd.conf",
    ] {
        assert!(includes(text, base, snippet), "{text}");
    }
    for text in [
        "",
        "#include plugstack.conf.d/*.conf",
        "include /etc/other.d/*.conf",
        "include plugstack.conf.d/pyxis.conf",
    ] {
        assert!(!includes(text, base, snippet), "{text}");
    }
}
