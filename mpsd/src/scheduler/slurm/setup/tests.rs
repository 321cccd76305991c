//! The line in the plugin stack.

use super::*;

#[test]
fn only_what_is_unusual_stands_in_the_line() {
    let around = |config, programs| Surroundings {
        config,
        settings: mpsd_core::config::Settings::usual(),
        broken: None,
        programs: Path::new(programs),
        host: &crate::scheduler::host::ThisHost,
        inventory: &|_| Err(mpsd_core::Undetermined::new("NVML", "not asked").into()),
        standing: &|_| Vec::new(),
    };
    let plugin = Path::new("/usr/lib/mpsd/spank/22.05/spank_mps.so");
    let usual = line(&Enable::default(), plugin, &around(None, USUAL_PROGRAMS));
    assert_eq!(
        usual,
        format!("{TAG}\noptional /usr/lib/mpsd/spank/22.05/spank_mps.so\n")
    );
    let options = Enable {
        required: true,
        scope: Some("step".into()),
        ..Enable::default()
    };
    let text = line(&options, plugin, &around(Some(Path::new("/c")), "/opt/m"));
    assert!(
        text.ends_with(
            "required /usr/lib/mpsd/spank/22.05/spank_mps.so config=/c prologue=/opt/m/mps-prologue \
                        epilogue=/opt/m/mps-epilogue scope=step\n"
        ),
        "{text}"
    );
}

#[test]
fn only_the_plugins_place_changes() {
    let old = "# ours\nrequired /usr/lib/mpsd/spank/22.05/spank_mps.so config=/x scope=job\n";
    let new = renamed(old, Path::new("/usr/lib/mpsd/spank/23.11/spank_mps.so"));
    assert_eq!(new, old.replace("22.05", "23.11"));
}

#[test]
fn blanks_and_tabs_of_a_line_stay() {
    let new = Path::new("/usr/lib/mpsd/spank/23.11/spank_mps.so");
    for old in [
        "optional\t/usr/lib/mpsd/spank/22.05/spank_mps.so\n",
        "required  /usr/lib/mpsd/spank/22.05/spank_mps.so  config=/x \n",
        " \toptional /usr/lib/mpsd/spank/22.05/spank_mps.so\tscope=job\n",
    ] {
        assert_eq!(renamed(old, new), old.replace("22.05", "23.11"));
    }
}

#[test]
fn another_plugins_line_stays() {
    let old = "optional /usr/lib/slurm/spank_pyxis.so\n";
    assert_eq!(renamed(old, Path::new("/p/spank_mps.so")), old);
}
