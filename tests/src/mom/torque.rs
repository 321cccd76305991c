//! What Torque 6.1's moms do with a job, in their order.

use super::cluster::{Cluster, Job, Product, USER, Verdict};
use super::node::MomNode;
use super::wire::{Ended, Run, Stream, Victims};
use std::collections::BTreeMap;

const HOME: &str = "/var/spool/torque";

/// SIGHUP to a node's mom: what it reads then counts from then on, and its log says so.
pub fn hang_up(node: &mut MomNode) {
    let says = "11/22/2026 00:10:12.123;02;   pbs_mom.1;Svr;";
    node.sh(&format!(
        "cd {HOME}; mkdir -p mom_logs; printf '1\\n\\0' >mom_priv/mom.lock; \
         (echo '{says}process_hup;reset'; sed -n 's#^$job_starter  *#{says}jobstarter;#p' mom_priv/config | tail -n 1) >>mom_logs/20261122"
    ));
}

impl Cluster {
    /// From the start of the job to its first process. On failure the mother superior has run its epilogue already,
    /// and no sister has run its own (recorded).
    pub fn torque_begin(&mut self, job: &Job) -> Verdict {
        match self.torque_join(job) {
            Verdict::Runs => self.torque_start(job),
            other => other,
        }
    }

    /// Its first half: the sisters join the job.
    pub fn torque_join(&mut self, job: &Job) -> Verdict {
        assert_eq!(self.product, Product::Torque);
        self.torque_files(job);
        self.mom_has(job, 0, true);
        for sister in 1..job.gpus.len() {
            let ended = self.torque_script(job, sister, "prologue.parallel", None);
            if Verdict::of(self.product, ended, false) != Verdict::Runs {
                self.take_down(sister);
                return self.torque_bail(job, Verdict::Requeued, -3);
            }
            self.mom_has(job, sister, true);
        }
        Verdict::Runs
    }

    /// Its second half: the mother superior's prologue.
    pub fn torque_start(&mut self, job: &Job) -> Verdict {
        let ended = self.torque_script(job, 0, "prologue", None);
        match Verdict::of(self.product, ended, job.interactive) {
            Verdict::Runs => Verdict::Runs,
            Verdict::Aborted => self.torque_bail(job, Verdict::Aborted, -2),
            Verdict::Requeued => self.torque_bail(job, Verdict::Requeued, -14),
        }
    }

    /// The job does not begin: its sisters forget it, and the mother superior runs its epilogue (recorded).
    fn torque_bail(&mut self, job: &Job, verdict: Verdict, code: i32) -> Verdict {
        (1..job.gpus.len()).for_each(|sister| self.mom_has(job, sister, false));
        self.torque_script(job, 0, "epilogue", Some(code));
        self.mom_has(job, 0, false);
        let state = if verdict == Verdict::Requeued { "Q" } else { "C" };
        let file = self.server().join("jobs").join(&job.id);
        let status = std::fs::read_to_string(&file).expect("the server's job");
        let status = status.replace("job_state = R", &format!("job_state = {state}"));
        std::fs::write(file, status).expect("the server's job");
        verdict
    }

    /// The mom's own file of a job: the mother superior's from before the prologue, a sister's from after hers (recorded).
    fn mom_has(&mut self, job: &Job, at: usize, has: bool) {
        let name = job.id.replace('[', "-").replace(']', "");
        let file = format!("{HOME}/mom_priv/jobs/{name}.JB");
        if has {
            self.nodes[at].write(&file, "", 0o600);
        } else {
            self.nodes[at].sh(&format!("rm -f '{file}'"));
        }
    }

    /// What a failed prologue.parallel or epilogue.parallel does to its node, until its message is cleared by hand (recorded).
    fn take_down(&self, at: usize) {
        let name = &self.nodes[at].name;
        let (state, note) = self.state(name);
        let file = self.server().join("nodes").join(name);
        std::fs::write(file, format!("down,{state}\n{note}")).expect("the server's node");
    }

    /// From the end of the job's last process: sisters first.
    pub fn torque_end(&mut self, job: &Job, code: i32) {
        for sister in 1..job.gpus.len() {
            let ended = self.torque_script(job, sister, "epilogue.parallel", Some(code));
            if !matches!(ended, Ended::Code(0) | Ended::NoScript) {
                self.take_down(sister);
            }
            self.mom_has(job, sister, false);
        }
        self.torque_script(job, 0, "epilogue", Some(code));
        self.mom_has(job, 0, false);
    }

    /// The job's main shell: a login shell with the script on standard input; through `$job_starter` where the mom
    /// has one (then it is none).
    pub fn torque_shell(&mut self, job: &Job, script: &str) -> Run {
        let file = format!("{HOME}/mom_priv/jobs/{}.SC", job.id);
        self.nodes[0].write(&file, script, 0o644);
        let mut run = match self.job_starter(0) {
            Some(starter) => self.user_process(job, 0, &[&starter, "/bin/sh"]),
            None => Run {
                program: Some("/bin/sh".into()),
                ..self.user_process(job, 0, &["-sh"])
            },
        };
        run.stdin = Stream::File(file);
        run
    }

    /// A task that TM starts on a node: no shell and no profile.
    pub fn torque_task(&mut self, job: &Job, at: usize, argv: &[&str]) -> Ended {
        self.torque_task_with(job, at, argv, &[])
    }

    /// The same with variables of the process that asked TM for it, as an MPI launcher passes its own.
    pub fn torque_task_with(
        &mut self,
        job: &Job,
        at: usize,
        argv: &[&str],
        passed: &[(&str, String)],
    ) -> Ended {
        let starter = self.job_starter(at);
        let words: Vec<&str> = starter
            .iter()
            .map(String::as_str)
            .chain(argv.iter().copied())
            .collect();
        let mut run = self.user_process(job, at, &words);
        run.env.extend(
            passed
                .iter()
                .map(|(name, value)| ((*name).to_owned(), value.clone())),
        );
        self.nodes[at].run(run)
    }

    fn job_starter(&mut self, at: usize) -> Option<String> {
        let log = self.nodes[at].read(&format!("{HOME}/mom_logs/20261122"))?;
        let taken = log
            .lines()
            .rev()
            .take_while(|line| !line.contains(";process_hup;"));
        taken
            .filter_map(|line| line.split_once(";jobstarter;"))
            .map(|(_, path)| path.trim().to_owned())
            .next()
    }

    /// What stands when the prologue starts: the GPU file on the mother superior, the job at the server.
    pub fn torque_files(&mut self, job: &Job) {
        let names: Vec<String> = self.nodes.iter().map(|node| node.name.clone()).collect();
        let pairs: Vec<(&String, u32)> = names
            .iter()
            .zip(&job.gpus)
            .flat_map(|(name, gpus)| gpus.iter().map(move |gpu| (name, *gpu)))
            .collect();
        let file: String = pairs
            .iter()
            .map(|(name, gpu)| format!("{name}-gpu{gpu}\n"))
            .collect();
        self.nodes[0].write(&format!("{HOME}/aux/{}gpu", job.id), &file, 0o644);
        let tasks = |name: &String| format!("{name}\n").repeat(job.tasks as usize);
        let file: String = names.iter().zip(&job.gpus).map(|(name, _)| tasks(name)).collect();
        self.nodes[0].write(&format!("{HOME}/aux/{}", job.id), &file, 0o644);
        let list: Vec<String> = pairs
            .iter()
            .map(|(name, gpu)| format!("{name}-gpu/{gpu}"))
            .collect();
        let hosts: Vec<String> = names
            .iter()
            .zip(&job.gpus)
            .map(|(name, _)| format!("{name}/0-3"))
            .collect();
        let status = format!(
            "    Job_Name = job1\n    job_state = R\n    exec_host = {}\n    exec_gpus = {}\n    Account_Name = {}",
            hosts.join("+"),
            list.join("+"),
            job.account
        );
        std::fs::create_dir_all(self.server().join("jobs")).expect("the server's jobs");
        std::fs::write(self.server().join("jobs").join(&job.id), status).expect("the server's job");
    }

    /// Runs one of the scripts on a node exactly as its mom does; an epilogue gets the job's exit code.
    pub fn torque_script(&mut self, job: &Job, at: usize, name: &str, code: Option<i32>) -> Ended {
        let run = self.torque_run(job, at, name, code);
        self.nodes[at].run(run)
    }

    /// The process of [`Cluster::torque_script`].
    pub fn torque_run(&mut self, job: &Job, at: usize, name: &str, code: Option<i32>) -> Run {
        let (user, uid) = USER;
        let part = |node: &str, gpus: usize| format!("{node}:ppn={}:gpus={gpus}", job.tasks);
        let parts = self.nodes.iter().zip(&job.gpus);
        let shape = match job.named {
            true => parts
                .map(|(node, gpus)| part(&node.name, gpus.len()))
                .collect::<Vec<_>>()
                .join("+"),
            false => part(&job.gpus.len().to_string(), job.gpus[at].len()),
        };
        let resources = format!("nodes={shape},neednodes={shape},walltime=01:00:00");
        let script = format!("{HOME}/mom_priv/jobs/{}.SC", job.id);
        let used = "cput=00:00:00,vmem=0kb,walltime=00:00:02,mem=0kb,energy_used=0".to_owned();
        let mut argv = vec![
            format!("{HOME}/mom_priv/{name}"),
            job.id.clone(),
            user.to_owned(),
            user.to_owned(),
            "job1".into(),
        ];
        match code {
            None => argv.extend([resources, "batch".into(), job.account.clone(), script]),
            Some(code) => {
                let session = if code < 0 { "0" } else { "4242" };
                let after = [
                    session.to_owned(),
                    resources,
                    used,
                    "batch".into(),
                    job.account.clone(),
                    code.to_string(),
                    script,
                ];
                argv.extend(after);
            }
        }
        let sister = at > 0;
        let spool = |kind: &str| Stream::File(format!("{HOME}/spool/{}.{kind}", job.id));
        let terminal = job.interactive && code.is_none() && !sister;
        let stdio = |file: Stream| match (terminal, sister, job.interactive) {
            (true, _, _) => Stream::Terminal,
            (_, true, _) | (_, _, true) => Stream::Null,
            _ => file,
        };
        Run {
            argv,
            env: self.torque_environment(job, at, &shape),
            cwd: format!("{HOME}/mom_priv"),
            umask: if code.is_none() && !sister { 0o077 } else { 0o022 },
            user: Some((0, vec![0, uid])),
            stdin: if terminal { Stream::Terminal } else { Stream::Null },
            stdout: stdio(spool("OU")),
            stderr: stdio(spool("ER")),
            leaked: if job.interactive {
                vec![3, 4, 9, 10, 13]
            } else {
                vec![9, 11, 14]
            },
            session: true,
            in_mom: true,
            checked: true,
            limit_ms: self.torque_limit_ms(at),
            at_limit: Victims::Session,
            ..Run::default()
        }
    }

    fn torque_environment(&self, job: &Job, at: usize, shape: &str) -> BTreeMap<String, String> {
        let several = if job.named { 0 } else { job.gpus.len() };
        let mut env: BTreeMap<String, String> = [
            ("PATH", "/bin:/usr/bin".to_owned()),
            ("LANG", "C".to_owned()),
            ("PBS_RESOURCE_NODES", shape.to_owned()),
            ("PBS_NUM_NODES", several.to_string()),
            ("PBS_NUM_PPN", if job.named { 1 } else { job.tasks }.to_string()),
            ("PBS_NP", (job.tasks as usize * job.gpus.len()).to_string()),
            ("PBS_NODENUM", at.to_string()),
            ("PBS_MSHOST", self.nodes[0].name.clone()),
            ("PBS_O_WORKDIR", format!("/home/{}", USER.0)),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        if at == 0 {
            env.insert("PBS_NODEFILE".into(), format!("{HOME}/aux//{}", job.id));
        }
        env
    }

    /// `$prologalarm`, 10 s early when it is above 10.
    fn torque_limit_ms(&mut self, at: usize) -> u64 {
        let config = self.nodes[at]
            .read(&format!("{HOME}/mom_priv/config"))
            .unwrap_or_default();
        let set = config
            .lines()
            .find_map(|line| line.strip_prefix("$prologalarm ")?.trim().parse::<u64>().ok());
        let seconds = set.unwrap_or(300);
        1000 * if seconds > 10 { seconds - 10 } else { seconds }
    }
}
