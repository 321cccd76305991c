//! What OpenPBS 23's moms do with a job, in their order: hooks on every node.

use super::cluster::{Cluster, Job, Product, Verdict};
use super::node::MomNode;
use super::wire::{Ended, Run, Stream, Victims, variables};
use crate::double::NodeDouble;
use serde::Deserialize;
use std::collections::BTreeMap;

pub(super) const HOME: &str = "/var/spool/pbs";
const TMP: &str = "/var/spool/pbs/mom_priv/hooks/tmp";

#[derive(Clone, Debug, Default, Deserialize)]
pub struct Hooked {
    pub verdict: String,
    pub message: String,
    pub imported: Vec<String>,
    pub progname: String,
    pub argv: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub log: Vec<(i32, String)>,
    pub run_count: Option<u32>,
    /// Seconds since 1970.
    pub execution_time: Option<u64>,
    /// The server puts the job back, although a rejected execjob_launch would end it.
    pub rerun: bool,
    pub account: Option<String>,
    pub resources: BTreeMap<String, Option<String>>,
    /// The attributes of each vnode, as a hook at the mom's start left them.
    pub vnodes: BTreeMap<String, BTreeMap<String, String>>,
}

impl Hooked {
    pub fn accepted(&self) -> bool {
        self.verdict == "accept"
    }
}

impl Cluster {
    pub fn openpbs_begin(&mut self, job: &Job) -> Verdict {
        assert_eq!(self.product, Product::OpenPbs);
        self.openpbs_files(job);
        for at in 0..job.gpus.len() {
            let begun = self.openpbs_tried(job, at);
            if !begun.accepted() {
                let (node, why) = (&self.nodes[at].name, begun.message);
                eprintln!("{node} rejected job {}: {why}", job.id);
                // The nodes that have begun forget the job.
                for begun in 0..at {
                    self.hook(job, begun, "execjob_abort");
                }
                return Verdict::of(Ended::Limit, job.interactive);
            }
        }
        Verdict::Runs
    }

    /// Without success. After 20 the server holds it (docs/facts/pbs.md#tries-of-a-job).
    pub fn tries(&self, job: &Job) -> u32 {
        let text = self.served(&format!("tries-{}", job.id));
        text.trim().parse().unwrap_or(0)
    }

    fn set_tries(&self, job: &Job, number: u32) {
        self.serve(&format!("tries-{}", job.id), &number.to_string());
    }

    /// The mom sends its own number of tries with a rejection, and the server takes it (recorded).
    pub fn openpbs_tried(&mut self, job: &Job, at: usize) -> Hooked {
        let tries = self.tries(job) + u32::from(at == 0);
        self.set_tries(job, tries);
        let hooked = self.hook(job, at, "execjob_begin");
        if !hooked.accepted() {
            self.set_tries(job, hooked.run_count.unwrap_or(tries));
        }
        hooked
    }

    /// pbs_cgroups has a lower order and has deleted its file by then.
    pub fn openpbs_end(&mut self, job: &Job) {
        for at in 0..job.gpus.len() {
            self.nodes[at].sh(&format!("rm -f {HOME}/aux/{}.env", job.id));
            self.hook(job, at, "execjob_end");
            self.nodes[at].sh(&format!("rm -f {HOME}/mom_priv/jobs/{}.JB", job.id));
        }
    }

    /// The job's main shell, a login shell; `Err`: the launch was rejected and the job fails.
    pub fn openpbs_shell(&mut self, job: &Job, script: &str) -> Result<Run, String> {
        self.has_script(job);
        let mut run = self.user_process(job, 0, &["-sh"]);
        run.env.insert("PBS_TASKNUM".into(), "1".into());
        run.env = self.launched(job, 0, &["/bin/sh"], run.env)?.env;
        let file = format!("{HOME}/mom_priv/jobs/{}.SC", job.id);
        self.nodes[0].write(&file, script, 0o644);
        run.program = Some("/bin/sh".into());
        run.stdin = Stream::File(file);
        Ok(run)
    }

    pub fn openpbs_task(&mut self, job: &Job, at: usize, argv: &[&str]) -> Result<Ended, String> {
        let mut run = self.user_process(job, at, argv);
        run.env.insert("PBS_TASKNUM".into(), "2".into());
        let launched = self.launched(job, at, argv, run.env)?;
        run.env = launched.env;
        run.argv = launched.argv;
        run.program = Some(launched.progname).filter(|program| !program.is_empty());
        Ok(self.nodes[at].run(run))
    }

    fn launched(
        &mut self,
        job: &Job,
        at: usize,
        program: &[&str],
        env: BTreeMap<String, String>,
    ) -> Result<Hooked, String> {
        let mut hooked = self.hook_of(job, at, ("execjob_launch", program), &env);
        if !hooked.accepted() {
            return Err(hooked.message);
        }
        // The mom's list escapes commas.
        let unescape = |value: &mut String| *value = value.replace("\\,", ",");
        hooked.env.values_mut().for_each(unescape);
        Ok(hooked)
    }

    pub fn hook(&mut self, job: &Job, at: usize, event: &str) -> Hooked {
        let env = match event {
            "execjob_launch" => self.job_environment(job, at),
            _ => BTreeMap::new(),
        };
        self.hook_of(job, at, (event, &[]), &env)
    }

    pub fn hook_of(
        &mut self,
        job: &Job,
        at: usize,
        (event, program): (&str, &[&str]),
        env: &BTreeMap<String, String>,
    ) -> Hooked {
        let attributes = self.served("hooks/mpsd.HK");
        if !attributes.contains("enabled = true") || !attributes.contains(event) {
            return Hooked {
                verdict: "accept".into(),
                progname: program.first().copied().unwrap_or_default().to_owned(),
                argv: program.iter().map(|word| (*word).to_owned()).collect(),
                env: env.clone(),
                account: Some(job.account.clone()),
                ..Hooked::default()
            };
        }
        let mut body = self.served("hooks/mpsd.PY");
        if !self.impatient_mom {
            // On a busy machine a start takes longer than a mom waits, and a test could not tell
            // which part failed.
            body = body.replace("\nMOM_WAITS_S = ", "\nMOM_WAITS_S = 20 + ");
        }
        let alarm = |line: &str| line.trim().strip_prefix("alarm = ")?.parse::<u64>().ok();
        let alarm = attributes.lines().find_map(alarm).unwrap_or(30);
        let given = self.event(job, at, (event, program), env);
        let node = &mut self.nodes[at];
        for (name, text) in [
            ("pbs.py", super::DOUBLE),
            ("run_hook.py", super::RUN_HOOK),
            ("mpsd.PY", &body),
            ("event", &given),
        ] {
            node.write(&format!("{TMP}/{name}"), text, 0o644);
        }
        // A sister's files are not delivered.
        let delivered = at == 0 && matches!(event, "execjob_launch" | "execjob_prologue");
        let [stdout, stderr] = ["OU", "ER"].map(|kind| match delivered {
            true => self.spool(job, kind),
            false => Stream::Null,
        });
        let files = ["run_hook.py", "mpsd.PY", "event", "result"];
        let paths = files.map(|name| format!("{TMP}/{name}"));
        let ended = self.nodes[at].run(Run {
            argv: [&["/usr/bin/python3".to_owned()], &paths[..]].concat(),
            env: variables(&[
                ("PATH", "/bin:/usr/bin"),
                ("PBS_CONF_FILE", "/etc/pbs.conf"),
            ]),
            cwd: TMP.to_owned(),
            umask: 0o022,
            stdout,
            stderr,
            output_of: Some(job.user.1),
            session: true,
            in_mom: true,
            limit_ms: alarm * 1000,
            at_limit: Victims::Group,
            kill_group_after: event != "execjob_end",
            ..Run::default()
        });
        if ended == Ended::Limit {
            return Hooked {
                verdict: "reject".into(),
                message: format!("alarm call while running {event} hook 'mpsd', request rejected"),
                ..Hooked::default()
            };
        }
        assert_eq!(ended, Ended::Code(0), "the hook's Python on {event}");
        let result = self.nodes[at].read(&paths[3]).expect("a result");
        serde_json::from_str(&result).unwrap_or_else(|e| panic!("{e}: {result}"))
    }

    fn event(
        &self,
        job: &Job,
        at: usize,
        (event, program): (&str, &[&str]),
        env: &BTreeMap<String, String>,
    ) -> String {
        let chunk = format!("ncpus=8:ngpus={}", job.gpus[at].len());
        let optional = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let failing = self.served("failing");
        let elsewhere = (0..job.vnodes_elsewhere).map(|number| format!("(other{number}:{chunk})"));
        let vnodes: Vec<String> = self.vnodes(job).into_iter().chain(elsewhere).collect();
        let mut select = format!("{}:{chunk}:mpiprocs={}", job.gpus.len(), job.tasks);
        let mut vnodes = vnodes.join("+");
        if event == "queuejob" && !job.select.is_empty() {
            (select, vnodes) = (job.select.clone(), String::new());
        }
        let known: &[&str] = match event {
            "exechost_startup" => &[&self.nodes[at].name],
            _ => &[],
        };
        serde_json::json!({
            "event": event,
            "vnodes": known,
            "failing": failing.lines().collect::<Vec<_>>(),
            "progname": program.first().copied().unwrap_or_default(),
            "argv": program,
            "env": env,
            "job": {
                "id": job.id, "euser": job.user.0, "egroup": job.user.0, "Account_Name": optional(&job.account), "ms": at == 0,
                "queue": job.queue, "exec_vnode": optional(&vnodes), "schedselect": select,
                "Resource_List": { "mps": optional(&job.resource), "place": job.place(), "select": select },
            },
        })
        .to_string()
    }

    fn vnodes(&self, job: &Job) -> Vec<String> {
        let parts = self.nodes.iter().zip(&self.gpus).zip(&job.gpus);
        let vnode = |((node, double), gpus): ((&MomNode, &NodeDouble), &Vec<u32>)| {
            let name = &node.name;
            if job.of_vnodes.is_empty() {
                return format!("({name}:ncpus=8:ngpus={})", gpus.len());
            }
            let uuids = double.uuids();
            let one = |gpu: &u32| format!("+{name}[{}]:{}", uuids[*gpu as usize], job.of_vnodes);
            let gpus: String = gpus.iter().map(one).collect();
            format!("({name}:ncpus=8{gpus})")
        };
        parts.map(vnode).collect()
    }

    /// What the hook makes of a mom's vnodes at its start, which the server takes.
    pub fn openpbs_starts(&mut self, at: usize) -> Hooked {
        let mut resources = String::new();
        for name in ["mps_shares", "mps_gpu"] {
            let kind = self.served(&format!("resources/{name}"));
            if !kind.is_empty() {
                resources += &format!("{name} {kind}\n");
            }
        }
        let file = format!("{HOME}/mom_priv/hooks/resourcedef");
        self.nodes[at].write(&file, &resources, 0o644);
        let hooked = self.hook(&Job::new("", ""), at, "exechost_startup");
        for (name, attributes) in &hooked.vnodes {
            let mut lines = self.served(&format!("vnodes/{name}"));
            for (key, value) in attributes {
                let key = match key.as_str() {
                    "sharing" => key.clone(),
                    _ => format!("resources_available.{key}"),
                };
                let is_new = |line: &&str| !line.starts_with(&format!("{key} "));
                let others = lines.lines().filter(is_new);
                lines = others.map(|line| format!("{line}\n")).collect();
                lines += &format!("{key} = {value}\n");
            }
            self.serve(&format!("vnodes/{name}"), &lines);
        }
        hooked
    }

    /// The mom's job file, and what pbs_cgroups leaves in its execjob_begin.
    pub fn openpbs_files(&mut self, job: &Job) {
        let mut file = format!(
            "---------\njobid:\t{}\nstate:\t\t0x4\nsubstate:\t0x2a (42)\n    queue = {}\n    exec_vnode = {}\n    schedselect = {}:ncpus=8:ngpus=1:mpiprocs={}\n    \
             Resource_List.place = {}\n",
            job.id,
            job.queue,
            self.vnodes(job).join("+"),
            job.gpus.len(),
            job.tasks,
            job.place()
        );
        for (key, value) in [
            ("Account_Name", &job.account),
            ("Resource_List.mps", &job.resource),
        ] {
            if !value.is_empty() {
                file += &format!("    {key} = {value}\n");
            }
        }
        for (at, gpus) in job.gpus.iter().enumerate() {
            if job.stock_place.is_none() {
                let list = self.uuids_of(at, gpus).join("\\,");
                let env = format!("CUDA_DEVICE_ORDER=PCI_BUS_ID\nCUDA_VISIBLE_DEVICES={list}\n");
                self.nodes[at].write(&format!("{HOME}/aux/{}.env", job.id), &env, 0o644);
            }
            self.nodes[at].write(&format!("{HOME}/mom_priv/jobs/{}.JB", job.id), &file, 0o600);
        }
    }

    /// The mom writes another substate when a job's processes have ended.
    pub fn openpbs_reaches(&mut self, job: &Job, substate: u32) {
        let path = format!("{HOME}/mom_priv/jobs/{}.JB", job.id);
        let file = self.nodes[0].read(&path).expect("a job's file");
        let line = format!("substate:\t0x{substate:x} ({substate})");
        self.nodes[0].write(&path, &file.replace("substate:\t0x2a (42)", &line), 0o600);
    }
}
