//! `mpsctl slurm enable | disable | check`: our line in a Slurm's plugin stack. The site's own
//! files stay as they are.

mod check;
mod stack;

use crate::node_check::with_node;
use crate::verbs::{
    AdminVerbs, CheckLine, RunningJobs, SetupContext, VerbError, VerbReport, must_be_root,
};
use anyhow::{Context as _, Error, Result, bail, ensure};
use batch::call::Location;
use batch::slurm::conf::Conf;
use batch::slurm::installation::{Installation, Release, directories, stamp_of};
use check::check;
use clap::builder::BoolishValueParser;
use clap::{FromArgMatches, Subcommand};
use mpsd_core::plugin_line::{Arguments, PROGRAMS};
use mpsd_core::text::list;
use stack::{
    Delivery, PLUGIN, Stack, TAG, WORDS, has_ours, is_foreign, is_ours, our_line, second_line,
};
use std::fs;
use std::path::{Path, PathBuf};

const PLUGINS: &str = "/usr/lib/mpsd/spank";
/// The mode of our files. One that is right already is not written again: the file's time tells
/// whether slurmd has begun since.
const MODE: u32 = 0o644;
const RESTART: &str = "restart slurmd on the nodes: it reads the plugin stack when it starts";

#[derive(Debug, Clone, Subcommand)]
enum SlurmVerb {
    /// Write our line for the plugin that fits the installed Slurm (root)
    ///
    /// Run it on every host where users submit or jobs run; on a configless cluster only on the
    /// controller's host. It writes plugstack.conf.d/mpsd.conf beside slurm.conf. It writes
    /// plugstack.conf itself only if that is missing or the controller sends it. Restart slurmd
    /// afterwards: it reads the stack when it starts.
    Enable(EnableOptions),
    /// Remove what enable wrote, once no job with MPS runs on this node (root)
    Disable {
        #[command(flatten)]
        slurm: SlurmOptions,
        #[command(flatten)]
        running: RunningJobs,
        /// Leave a line on a file system that other hosts may share (run by the packages)
        #[arg(long)]
        local: bool,
    },
    /// Say what works, what could be better, and what is wrong, one line each
    ///
    /// Exit status: 0 no FAIL; 2 a FAIL. FAIL and WARN mean what they mean in doctor.
    Check(SlurmOptions),
}

#[derive(Debug, Clone, Default, clap::Args)]
struct SlurmOptions {
    /// slurm.conf; if not given, from mpsd.toml, from SLURM_CONF, or that of the Slurm that runs
    /// here
    #[arg(long, value_name = "FILE")]
    slurm_conf: Option<PathBuf>,
    /// Slurm's directory with bin and sbin; from mpsd.toml, or that of the Slurm that runs here if
    /// not given
    #[arg(long, value_name = "DIR")]
    exec: Option<PathBuf>,
    /// This node's name in Slurm; the host's if not given
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// The directory with a plugin for each release
    #[arg(long, value_name = "DIR", default_value = PLUGINS)]
    plugins: PathBuf,
}

#[derive(Debug, Clone, Default, clap::Args)]
struct EnableOptions {
    #[command(flatten)]
    slurm: SlurmOptions,
    /// The release, as in 23.11; what the installed Slurm says if not given
    #[arg(long, value_name = "YY.MM", value_parser = Release::parse)]
    release: Option<Release>,
    /// Write 'required' instead of 'optional': where the plugin cannot be loaded, every srun fails.
    /// Kept when you run it again; --required=off takes it back
    #[arg(long, value_name = "on|off", num_args = 0..=1, require_equals = true,
        default_missing_value = "on", value_parser = BoolishValueParser::new(),
        hide_possible_values = true)]
    required: Option<bool>,
    /// Only where enable wrote a line before: name the plugin for the Slurm that is here now (run
    /// by the packages)
    #[arg(long, conflicts_with = "required")]
    refresh: bool,
}

pub const VERBS: AdminVerbs = AdminVerbs {
    command: || {
        SlurmVerb::augment_subcommands(clap::Command::new("slurm").about("Our plugin in a Slurm"))
            .subcommand_required(true)
            .arg_required_else_help(true)
    },
    run,
    has_own_files: false,
    check: check_here,
};

fn run(matches: &clap::ArgMatches, ctx: &SetupContext<'_>) -> Result<VerbReport, VerbError> {
    let verb = SlurmVerb::from_arg_matches(matches).map_err(Error::from)?;
    if !matches!(verb, SlurmVerb::Check(_)) {
        must_be_root("mpsctl slurm", "only root may change Slurm's configuration")?;
    }
    Ok(match &verb {
        SlurmVerb::Enable(options) if options.refresh => refresh(options, ctx)?,
        SlurmVerb::Enable(options) => enable(options, ctx)?,
        SlurmVerb::Disable {
            slurm,
            running,
            local,
        } => {
            let stack = Stack::of(&slurm.find(ctx)?.1);
            let still = running.allow(ctx)?;
            let home = stack.home();
            let mut report = match *local && ctx.host.may_be_shared(&home) && !is_foreign(&home) {
                true => leave(&home)?,
                false => disable(&stack)?,
            };
            report.lines.extend(still);
            report
        }
        SlurmVerb::Check(options) => {
            let (slurm, conf) = options.find(ctx)?;
            let node = options.node(ctx);
            let own = check(&options.plugins, &slurm, &conf, &node, ctx);
            with_node(own, &node, ctx).into()
        }
    })
}

fn check_here(node: &str, ctx: &SetupContext<'_>) -> Option<Vec<CheckLine>> {
    let options = SlurmOptions {
        node: Some(node.to_owned()),
        plugins: PLUGINS.into(),
        ..SlurmOptions::default()
    };
    let named = ctx.settings.slurm.conf.is_some() || ctx.settings.slurm.exec.is_some();
    match options.find(ctx) {
        Ok((slurm, conf)) => Some(check(&options.plugins, &slurm, &conf, node, ctx)),
        Err(why) => named.then(|| vec![CheckLine::Fail(format!("{why:#}"))]),
    }
}

impl SlurmOptions {
    fn node(&self, ctx: &SetupContext<'_>) -> String {
        self.node.clone().unwrap_or_else(|| ctx.host.name())
    }

    fn find(&self, ctx: &SetupContext<'_>) -> Result<(Installation, Conf)> {
        let mut location = Location::of(&ctx.settings);
        let named = self.slurm_conf.as_ref();
        let named = named.map(|path| path.display().to_string());
        location.slurm_conf = named.or(location.slurm_conf);
        location.slurm_exec = self.exec.clone().or(location.slurm_exec);
        let slurm = Installation::find(&location, &self.node(ctx));
        if let Some(why) = slurm.untrusted() {
            bail!(why);
        }
        let conf = Conf::find(slurm.conf(ctx.host).as_deref(), ctx.host).map_err(Error::msg)?;
        Ok((slurm, conf))
    }
}

fn enable(options: &EnableOptions, ctx: &SetupContext<'_>) -> Result<VerbReport> {
    let (slurm, conf) = options.slurm.find(ctx)?;
    let stack = Stack::of(&conf);
    if stack.delivery == Delivery::Fetched {
        bail!(
            "'{}': it was fetched from the controller and will be again; do this on the controller's host, in the \
             directory of its slurm.conf",
            conf.file.display()
        );
    }
    if options.release.is_none() && slurm.is_a_guess() {
        let found = directories();
        let found = list(found.iter().map(|dir| dir.display()));
        bail!("several Slurms are here ({found}) and none runs: name one with --exec");
    }
    let (release, plugin) = plugin(options, &slurm, ctx)?;
    let homes = [stack.home(), stack.snippet(), stack.file.clone()];
    let old = homes.iter().find_map(|file| our_line(file));
    let line = line(&old.unwrap_or_default(), options, &plugin, ctx);
    let mut report = VerbReport::default();
    add_line(&mut report, &stack, &line, release, &plugin)?;
    if report.changed {
        report.did(RESTART);
    } else if !report.incomplete {
        let home = stack.home();
        let home = home.display();
        report.did(format!("'{home}' has our line for Slurm {release}"));
    }
    Ok(report)
}

fn add_line(
    report: &mut VerbReport,
    stack: &Stack,
    line: &str,
    release: Release,
    plugin: &Path,
) -> Result<()> {
    let (snippet, second) = (stack.snippet(), stack.second_snippet());
    let shown = stack.file.display();
    let for_release = format!(" for Slurm {release}");
    if stack.delivery == Delivery::Sent {
        let about = format!("{for_release}; the controller sends it to the nodes");
        if stack.is_ours() {
            report.write(&stack.file, &tagged(line), MODE, &about)?;
        } else if our_line(&stack.file).as_deref() != Some(line) {
            report.left(format!(
                "the controller sends '{shown}' to the nodes, and nothing that it includes: let this be its line for \
                 {PLUGIN}: {line}"
            ));
        }
        if let Some(second) = stack.missing_second(plugin) {
            report.left(format!(
                "add this line to '{shown}', behind the containers' plugin: {second}"
            ));
        }
        return Ok(());
    }
    if is_foreign(&snippet) {
        let shown = snippet.display();
        bail!("'{shown}': there is one that we did not write; remove it first");
    }
    report.write(&snippet, &tagged(line), MODE, &for_release)?;
    if stack.is_ours() {
        let include = tagged(&stack.include());
        report.write(&stack.file, &include, MODE, " to include it")?;
    } else if our_line(&stack.file).is_none() && !stack.includes_snippet() {
        report.left(format!("add this line to '{shown}': {}", stack.include()));
    }
    if stack.has_containers() && !is_foreign(&second) {
        let about = " to look behind the containers' plugin";
        report.write(&second, &tagged(&second_line(plugin)), MODE, about)?;
    }
    Ok(())
}

fn tagged(line: &str) -> Vec<u8> {
    format!("{TAG}\n{line}\n").into_bytes()
}

fn plugin(
    options: &EnableOptions,
    slurm: &Installation,
    ctx: &SetupContext<'_>,
) -> Result<(Release, PathBuf)> {
    let plugins = &options.slurm.plugins;
    let installed = || slurm.releases(ctx.host).first().copied();
    let unknown = "no slurmd, sinfo or srun here says its version; name it with --release";
    let release = options.release.or_else(installed).context(unknown)?;
    let file = plugins.join(release.to_string()).join(PLUGIN);
    let shown = file.display();
    if !file.exists() {
        let entries = fs::read_dir(plugins).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut have: Vec<_> = names.collect();
        have.sort();
        let have = if have.is_empty() {
            "none".to_owned()
        } else {
            have.join(", ")
        };
        bail!("no '{shown}': no plugin for Slurm {release}; there are: {have}");
    }
    let stamp = stamp_of(&file).map_err(Error::msg)?;
    ensure!(
        stamp == release,
        "'{shown}' is stamped for Slurm {stamp}, not {release}"
    );
    Ok((release, file))
}

/// The words of the `old` line stay, but for those that an option replaces or that the plugin would
/// not understand.
fn line(old: &str, options: &EnableOptions, plugin: &Path, ctx: &SetupContext<'_>) -> String {
    let [optional, required] = WORDS;
    let was_required = old.split_whitespace().next() == Some(required);
    let word = match options.required.unwrap_or(was_required) {
        true => required,
        false => optional,
    };
    let mut words = Vec::new();
    for word in old.split_whitespace().skip(2) {
        words.push(word.to_owned());
        if Arguments::parse(&words).is_err() {
            words.pop();
        }
    }
    let mut set = |key: &str, value: String| {
        let new = format!("{key}={value}");
        let is_old = |word: &&mut String| word.split('=').next() == Some(key);
        match words.iter_mut().find(is_old) {
            Some(old) => *old = new,
            None => words.push(new),
        }
    };
    if let Some(config) = ctx.config {
        set("config", config.display().to_string());
    }
    if ctx.programs != Path::new(PROGRAMS) {
        for key in ["prologue", "epilogue"] {
            let program = ctx.programs.join(format!("mps-{key}"));
            set(key, program.display().to_string());
        }
    }
    let head = [word.to_owned(), plugin.display().to_string()];
    [&head[..], &words].concat().join(" ")
}

/// The packages run it after an upgrade of Slurm, so a host without our line is left as it is,
/// without a word.
fn refresh(options: &EnableOptions, ctx: &SetupContext<'_>) -> Result<VerbReport> {
    let mut report = VerbReport::default();
    let Ok((slurm, conf)) = options.slurm.find(ctx) else {
        return Ok(report);
    };
    let stack = Stack::of(&conf);
    let (home, second) = (stack.home(), stack.second_snippet());
    if stack.delivery == Delivery::Fetched || our_line(&home).is_none() {
        return Ok(report);
    }
    let (release, plugin) = plugin(options, &slurm, ctx)?;
    let about = format!(" to name the plugin for Slurm {release}");
    let old = fs::read_to_string(&home);
    let old = old.with_context(|| format!("cannot read '{}'", home.display()))?;
    let new = renamed(&old, &plugin);
    if second.exists() && !is_foreign(&second) {
        report.write(&second, &tagged(&second_line(&plugin)), MODE, &about)?;
    }
    if !is_foreign(&home) {
        report.write(&home, new.as_bytes(), MODE, &about)?;
    } else if new != old {
        let line = format!("the line for {PLUGIN} in '{}'", home.display());
        report.left(format!("let {line} name '{}'", plugin.display()));
    }
    if report.changed {
        report.did(RESTART);
    }
    Ok(report)
}

/// The words around the plugin are the administrator's choice.
fn renamed(text: &str, plugin: &Path) -> String {
    let line = |line: &str| {
        let old = line.split_whitespace().nth(1).filter(|_| is_ours(line));
        let new = old.map(|old| line.replacen(old, &plugin.display().to_string(), 1));
        new.unwrap_or_else(|| line.to_owned()) + "\n"
    };
    text.lines().map(line).collect()
}

/// Leaves the line in `home`, the file that other hosts may share. This host loses the plugin, and
/// `required` would then fail each of its jobs.
fn leave(home: &Path) -> Result<VerbReport> {
    let mut report = VerbReport::default();
    let text = fs::read_to_string(home)?;
    let [optional, required] = WORDS;
    if our_line(home).is_some_and(|line| line.trim_start().starts_with(required)) {
        let text = text.replacen(required, optional, 1);
        let about = format!(" with '{optional}': without the plugin '{required}' fails every job");
        report.write(home, text.as_bytes(), MODE, &about)?;
    }
    report.did(format!(
        "'{}' stays, because other hosts may share it: once no host has a job with MPS, remove it by 'mpsctl slurm disable' on one; \
         until then Slurm's commands here print an error",
        home.display()
    ));
    Ok(report)
}

fn disable(stack: &Stack) -> Result<VerbReport> {
    let (snippet, file) = (stack.snippet(), &stack.file);
    let mut report = VerbReport::default();
    let sites = stack.of_site();
    for path in [&snippet, &stack.second_snippet(), file] {
        if path == file && !is_foreign(path) && !sites.is_empty() {
            let about = " with the site's own lines";
            report.write(path, (sites.join("\n") + "\n").as_bytes(), MODE, about)?;
        } else if path.exists() && !is_foreign(path) {
            report.remove(path)?;
        }
    }
    if snippet.exists() {
        let snippet = snippet.display();
        report.left(format!("'{snippet}' is not ours: left as it is"));
    } else if has_ours(file) {
        let file = file.display();
        report.left(format!("remove the line for {PLUGIN} from '{file}'"));
    } else if report.changed {
        report.did("restart slurmd on the nodes: it keeps the plugin until then");
    } else {
        report.did("nothing of mpsd is there");
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::context;
    use batch::testing::TextHost;

    /// What a line is after `mpsctl slurm disable --force` with this option, and what was told.
    fn disabled(shared: bool, word: &str, option: &[&str]) -> (Option<String>, Vec<String>) {
        let place = tempfile::tempdir().unwrap();
        let conf = place.path().join("slurm.conf").display().to_string();
        let home = place.path().join("plugstack.conf.d/mpsd.conf");
        fs::create_dir(home.parent().unwrap()).unwrap();
        fs::write(&home, tagged(&format!("{word} /x/{PLUGIN} config=/y"))).unwrap();
        let mut host = TextHost::default().file(&conf, "GresTypes=gpu\n");
        host.shared = shared;
        let ctx = SetupContext {
            host: &host,
            ..context(PROGRAMS, None)
        };
        let words = ["slurm", "disable", "--force", "--slurm-conf", &conf];
        let matches = (VERBS.command)().get_matches_from([&words, option].concat());
        let report = run(&matches, &ctx).unwrap();
        assert_eq!(report.exit_code(), 0, "{report:?}");
        (our_line(&home), report.lines)
    }

    #[test]
    fn a_package_leaves_a_line_that_hosts_may_share_and_it_fails_no_job() {
        for (shared, word, option) in [
            (false, "optional", &["--local"][..]),
            (true, "optional", &[]),
        ] {
            let (line, told) = disabled(shared, word, option);
            assert_eq!(line, None, "{told:?}");
        }
        for (word, lines) in [("optional", 1), ("required", 2)] {
            let (line, told) = disabled(true, word, &["--local"]);
            assert_eq!(line.unwrap(), format!("optional /x/{PLUGIN} config=/y"));
            assert_eq!(told.len(), lines, "{told:?}");
            let words = "stays, because other hosts may share it";
            assert!(told.last().unwrap().contains(words), "{told:?}");
        }
    }

    #[test]
    fn a_refresh_changes_the_plugins_place_alone() {
        let new = Path::new("/usr/lib/mpsd/spank/23.11/spank_mps.so");
        for old in [
            "# ours\nrequired /usr/lib/mpsd/spank/22.05/spank_mps.so config=/x epilogue=/y\n",
            "optional\t/usr/lib/mpsd/spank/22.05/spank_mps.so\n",
            "required  /usr/lib/mpsd/spank/22.05/spank_mps.so  config=/x \n",
            " \toptional /usr/lib/mpsd/spank/22.05/spank_mps.so\tconfig=/x\n",
            "optional /usr/lib/slurm/22/spank_pyxis.so\n",
        ] {
            assert_eq!(renamed(old, new), old.replace("22.05", "23.11"));
        }
    }
}
