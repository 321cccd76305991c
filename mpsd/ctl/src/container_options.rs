//! `mpsctl env --container RUNTIME`: the options that attach a container to its job's MPS
//! (docs/containers.md).

use mpsd_core::Refusal;
use mpsd_core::environment::{Change, PIPE_DIRECTORY};
use std::path::Path;

/// How enroot mounts the job's directory.
const MOUNT: &str = "none:x-create=dir,rbind,rw,nosuid,nodev,noexec,rprivate";

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Container {
    /// apptainer exec, singularity exec
    #[value(alias = "singularity")]
    Apptainer,
    /// enroot start
    Enroot,
    /// podman run
    Podman,
    /// docker run: as the job's user, because the daemon serves no other user
    Docker,
}

impl Container {
    /// Printed instead of the options after a failure. No runtime knows it, so the container does
    /// not start: without its options it would silently run outside MPS.
    pub const FAILURE: &str = "--mpsctl-env-failed\n";

    /// The job's directory at its own path, with the sockets of all its daemons, and the variables.
    /// A variable to be removed needs no option: of these runtimes only Apptainer passes it on.
    pub fn write(self, changes: &[Change], uid: u32, gid: u32) -> Result<String, Refusal> {
        let value = |change: &Change| Some((change.name, change.value.clone()?));
        let set: Vec<_> = changes.iter().filter_map(value).collect();
        let pipe = set.iter().find(|(name, _)| *name == PIPE_DIRECTORY);
        let Some(directory) = pipe.and_then(|(_, pipe)| Path::new(pipe).parent()) else {
            return Ok(String::new());
        };
        let removed = changes.iter().find(|change| change.value.is_none());
        if let (Self::Apptainer, Some(Change { name, .. })) = (self, removed) {
            return Err(Refusal::new(
                format!("variable {name}"),
                "another job's MPS left it, and Apptainer takes it into the container",
                "'eval \"$(mpsctl env)\"' before it",
            ));
        }
        let directory = directory.display();
        let same = format!("{directory}:{directory}");
        let mut words: Vec<String> = match self {
            Self::Apptainer => vec!["--bind".into(), format!("{directory}")],
            Self::Enroot => vec!["--mount".into(), format!("{same}:{MOUNT}")],
            Self::Podman => vec!["--volume".into(), same],
            Self::Docker => vec![format!("--user={uid}:{gid}"), "--volume".into(), same],
        };
        for (name, value) in &set {
            // After a second '=' a comma ends a variable for Apptainer, which removes quotes
            // (pflag, `stringToStringValue.Set`).
            let splits = self == Self::Apptainer && value.contains(',') && value.contains('=');
            let quote = if splits { "\"" } else { "" };
            words.extend(["--env".into(), format!("{quote}{name}={value}{quote}")]);
        }
        let Some(word) = words.iter().find(|word| !is_one_word(word)) else {
            return Ok(words.join(" ") + "\n");
        };
        let why = "a shell would not read it as one word";
        let allowed = "a run_dir of letters, digits, '/', '.', '_' and '-'";
        Err(Refusal::new(format!("the option '{word}'"), why, allowed))
    }
}

/// Whether a shell leaves this word of a command's output as it is. Job ids may have brackets,
/// which only match files of such names.
fn is_one_word(word: &str) -> bool {
    word.bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"/._-+=:,[]%\"".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_runtime_gets_the_directory_and_the_variables() {
        let set = [
            Change::set(PIPE_DIRECTORY, "/run/mpsd/jobs/42/pipe-1"),
            Change::set("CUDA_VISIBLE_DEVICES", "GPU-0,GPU-1"),
        ];
        let removed = Change::unset("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
        let variables = "--env CUDA_MPS_PIPE_DIRECTORY=/run/mpsd/jobs/42/pipe-1 --env CUDA_VISIBLE_DEVICES=GPU-0,GPU-1\n";
        let mount = "/run/mpsd/jobs/42:/run/mpsd/jobs/42";
        let enroot =
            format!("--mount {mount}:none:x-create=dir,rbind,rw,nosuid,nodev,noexec,rprivate ");
        let volume = format!("--volume {mount} ");
        for (runtime, options) in [
            (Container::Apptainer, "--bind /run/mpsd/jobs/42 ".to_owned()),
            (Container::Enroot, enroot),
            (Container::Podman, volume.clone()),
            (Container::Docker, format!("--user=1000:100 {volume}")),
        ] {
            assert_eq!(runtime.write(&set, 1000, 100), Ok(options + variables));
            let with_removed = [&set[..], std::slice::from_ref(&removed)].concat();
            let foreign = runtime.write(&with_removed, 1000, 100);
            assert_eq!(foreign.is_err(), runtime == Container::Apptainer);
        }
        let limits = [set[0].clone(), Change::set("LIMIT", "0=4G,1=2G")];
        let quoted = Container::Apptainer.write(&limits, 1000, 100).unwrap();
        assert!(quoted.ends_with("--env \"LIMIT=0=4G,1=2G\"\n"), "{quoted}");
        let without_mps = [Change::unset(PIPE_DIRECTORY), Change::unset("MPSD_JOB")];
        assert_eq!(Container::Docker.write(&without_mps, 0, 0).unwrap(), "");
    }

    #[test]
    fn a_word_that_a_shell_would_split_is_refused() {
        let changes = [Change::set(PIPE_DIRECTORY, "/run/m psd/jobs/42/pipe")];
        let refused = Container::Podman.write(&changes, 0, 0);
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("/run/m psd/jobs/42"), "{refused}");
    }
}
