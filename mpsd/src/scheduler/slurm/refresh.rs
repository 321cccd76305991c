//! `mpsctl slurm enable --refresh`: after an upgrade of Slurm our line names the plugin for the release that is here now.
//! The packages run it, so a host without our line is left as it is, without a word.

use super::setup::{Done, Enable, PLUGIN, Surroundings, find, installed, is_foreign, plugin, write};
use std::fs;
use std::path::Path;

pub(super) fn refresh(options: &Enable, around: &Surroundings<'_>) -> Result<Done, String> {
    let mut done = Done {
        lines: Vec::new(),
        complete: true,
    };
    let Ok(conf) = find(&options.place, around) else {
        return Ok(done);
    };
    let snippet = conf.snippet();
    if conf.is_cached() || !snippet.exists() || is_foreign(&snippet) {
        return Ok(done);
    }
    let release = options.release.or_else(|| installed(around));
    let release = release.ok_or("no slurmd, sinfo or srun here says its version; name it with --release")?;
    let plugin = plugin(&options.place.plugins, release)?;
    let old =
        fs::read_to_string(&snippet).map_err(|e| format!("cannot read '{}': {e}", snippet.display()))?;
    let new = renamed(&old, &plugin);
    if new != old {
        write(&snippet, &new)?;
        let named = format!("'{}' now names the plugin for Slurm {release}", snippet.display());
        done.lines.extend([
            named,
            "restart slurmd on the nodes: it reads the plugin stack when it starts".to_owned(),
        ]);
    }
    Ok(done)
}

/// The text with `plugin` in the place of ours; the words before and after it are the administrator's choice.
fn renamed(text: &str, plugin: &Path) -> String {
    let line = |line: &str| {
        let mut words: Vec<&str> = line.split(' ').collect();
        let ours = |word: &&str| Path::new(word).file_name().is_some_and(|name| name == PLUGIN);
        let plugin = plugin.display().to_string();
        if matches!(words[0], "optional" | "required") && words.get(1).is_some_and(ours) {
            words[1] = &plugin;
        }
        words.join(" ") + "\n"
    };
    text.lines().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_plugins_place_changes() {
        let old = "# ours\nrequired /usr/lib/mpsd/spank/22.05/spank_mps.so config=/x scope=job\n";
        let new = renamed(old, Path::new("/usr/lib/mpsd/spank/23.11/spank_mps.so"));
        assert_eq!(new, old.replace("22.05", "23.11"));
    }

    #[test]
    fn another_plugins_line_stays() {
        let old = "optional /usr/lib/slurm/spank_pyxis.so\n";
        assert_eq!(renamed(old, Path::new("/p/spank_mps.so")), old);
    }
}
