//! What Torque 6.1's moms do with a job, in their order.

use super::cluster::{Cluster, Job, Product, Verdict};
use super::node::MomNode;
use super::wire::{Ended, Run, Stream, Victims, variables};
use std::collections::BTreeMap;

pub(super) const HOME: &str = "/var/spool/torque";

/// Sends SIGHUP to a node's mom, which reads its configuration again and logs that.
pub fn hang_up(node: &mut MomNode) {
    let says = "11/22/2026 00:10:12.123;02;   pbs_mom.1;Svr;";
    node.sh(&format!(
        "cd {HOME}; echo vm.example.org >server_name; mkdir -p mom_logs; printf '1\\n\\0' >mom_priv/mom.lock; \
         (echo '{says}process_hup;reset'; sed -n 's#^$job_starter  *#{says}jobstarter;#p' mom_priv/config | tail -n 1) >>mom_logs/20261122"
    ));
}

impl Cluster {
    /// After a failure the mother superior has run its epilogue, and no sister has (recorded).
    pub fn torque_begin(&mut self, job: &Job) -> Verdict {
        match self.torque_join(job) {
            Verdict::Runs => self.torque_start(job),
            other => other,
        }
    }

    pub fn torque_join(&mut self, job: &Job) -> Verdict {
        assert_eq!(self.product, Product::Torque);
        self.torque_files(job);
        self.mom_has(job, 0, true);
        for sister in 1..job.gpus.len() {
            let ended = self.torque_script(job, sister, "prologue.parallel", None);
            if Verdict::of(ended, false) != Verdict::Runs {
                self.take_down(sister);
                return self.torque_bail(job, Verdict::Requeued, -3);
            }
            self.mom_has(job, sister, true);
        }
        Verdict::Runs
    }

    pub fn torque_start(&mut self, job: &Job) -> Verdict {
        let ended = self.torque_script(job, 0, "prologue", None);
        match Verdict::of(ended, job.interactive) {
            Verdict::Runs => Verdict::Runs,
            Verdict::Aborted => self.torque_bail(job, Verdict::Aborted, -2),
            Verdict::Requeued => self.torque_bail(job, Verdict::Requeued, -14),
        }
    }

    /// Its sisters forget it, and the mother superior runs its epilogue (recorded).
    fn torque_bail(&mut self, job: &Job, verdict: Verdict, code: i32) -> Verdict {
        (1..job.gpus.len()).for_each(|sister| self.mom_has(job, sister, false));
        self.torque_script(job, 0, "epilogue", Some(code));
        self.mom_has(job, 0, false);
        let state = match verdict {
            Verdict::Requeued => "job_state = Q",
            _ => "job_state = C",
        };
        self.torque_status(job, "job_state = R", state);
        verdict
    }

    pub fn torque_status(&self, job: &Job, from: &str, to: &str) {
        let file = format!("jobs/{}", job.id);
        self.serve(&file, &self.served(&file).replace(from, to));
    }

    /// The mother superior's from before the prologue, a sister's from after its own (recorded).
    fn mom_has(&mut self, job: &Job, at: usize, has: bool) {
        let name = job.id.replace('[', "-").replace(']', "");
        let file = format!("{HOME}/mom_priv/jobs/{name}.JB");
        if has {
            self.nodes[at].write(&file, "", 0o600);
        } else {
            self.nodes[at].sh(&format!("rm -f '{file}'"));
        }
    }

    /// By a failed prologue.parallel or epilogue.parallel, until it is cleared (recorded).
    fn take_down(&self, at: usize) {
        let name = &self.nodes[at].name;
        let (state, note) = self.state(name);
        self.serve(&format!("nodes/{name}"), &format!("down,{state}\n{note}"));
    }

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

    /// A login shell that reads the script; a `$job_starter` gets a plain shell.
    pub fn torque_shell(&mut self, job: &Job, script: &str) -> Run {
        let file = format!("{HOME}/mom_priv/jobs/{}.SC", job.id);
        self.nodes[0].write(&file, script, 0o644);
        let (program, argv) = match self.job_starter(0) {
            Some(starter) => (None, vec![starter, "/bin/sh".to_owned()]),
            None => (Some("/bin/sh".to_owned()), vec!["-sh".to_owned()]),
        };
        Run {
            program,
            argv,
            stdin: Stream::File(file),
            ..self.user_process(job, 0, &[])
        }
    }

    /// Without a shell or a profile, with `passed` of the process that asked TM.
    pub fn torque_task(
        &mut self,
        job: &Job,
        at: usize,
        argv: &[&str],
        passed: &[(&str, &str)],
    ) -> Ended {
        let starter = self.job_starter(at);
        let starter: Vec<&str> = starter.iter().map(String::as_str).collect();
        let mut run = self.user_process(job, at, &[&starter, argv].concat());
        run.env.extend(variables(passed));
        self.nodes[at].run(run)
    }

    fn job_starter(&mut self, at: usize) -> Option<String> {
        let log = self.nodes[at].read(&format!("{HOME}/mom_logs/20261122"))?;
        let is_since = |line: &&str| !line.contains(";process_hup;");
        let since_hup = log.lines().rev().take_while(is_since);
        let mut starters = since_hup.filter_map(|line| line.split_once(";jobstarter;"));
        starters.next().map(|(_, path)| path.trim().to_owned())
    }

    pub fn torque_files(&mut self, job: &Job) {
        let (mut gpu_file, mut node_file) = (String::new(), String::new());
        let (mut hosts, mut exec_gpus) = (Vec::new(), Vec::new());
        for (MomNode { name, .. }, gpus) in self.nodes.iter().zip(&job.gpus) {
            node_file += &format!("{name}\n").repeat(job.tasks as usize);
            hosts.push(format!("{name}/0-3"));
            for gpu in gpus {
                gpu_file += &format!("{name}-gpu{gpu}\n");
                exec_gpus.push(format!("{name}-gpu/{gpu}"));
            }
        }
        let (hosts, exec_gpus) = (hosts.join("+"), exec_gpus.join("+"));
        let status = format!(
            "    Job_Name = job1\n    job_state = R\n    exec_host = {hosts}\n    exec_gpus = {exec_gpus}\n    Account_Name = {}",
            job.account
        );
        self.nodes[0].write(&format!("{HOME}/aux/{}gpu", job.id), &gpu_file, 0o644);
        self.nodes[0].write(&format!("{HOME}/aux/{}", job.id), &node_file, 0o644);
        self.serve(&format!("jobs/{}", job.id), &status);
    }

    /// Exactly as its mom does; an epilogue gets the job's exit code.
    pub fn torque_script(&mut self, job: &Job, at: usize, name: &str, code: Option<i32>) -> Ended {
        let run = self.torque_run(job, at, name, code);
        self.nodes[at].run(run)
    }

    pub fn torque_run(&mut self, job: &Job, at: usize, name: &str, code: Option<i32>) -> Run {
        let (user, uid) = job.user;
        let shared = if job.shared { ":shared" } else { "" };
        let part =
            |node: &str, gpus: usize| format!("{node}:ppn={}:gpus={gpus}{shared}", job.tasks);
        let parts = self.nodes.iter().zip(&job.gpus);
        let parts = parts.map(|(node, gpus)| part(&node.name, gpus.len()));
        let shape = match job.named {
            true => parts.collect::<Vec<_>>().join("+"),
            false => part(&job.gpus.len().to_string(), job.gpus[at].len()),
        };
        let resources = format!("nodes={shape},neednodes={shape},walltime=01:00:00");
        let script = format!("{HOME}/mom_priv/jobs/{}.SC", job.id);
        let used = "cput=00:00:00,vmem=0kb,walltime=00:00:02,mem=0kb,energy_used=0".to_owned();
        let mut argv = vec![
            format!("{HOME}/mom_priv/{name}"),
            job.id.clone(),
            user.into(),
            user.into(),
            "job1".into(),
        ];
        let account = job.account.clone();
        match code {
            None => argv.extend([resources, job.queue.into(), account, script]),
            Some(code) => {
                let session = if code < 0 { "0" } else { "4242" }.to_owned();
                let code = code.to_string();
                argv.extend([session, resources, used, job.queue.into()]);
                argv.extend([account, code, script]);
            }
        }
        let sister = at > 0;
        let terminal = job.interactive && code.is_none() && !sister;
        let stdio = |kind: &str| match (terminal, sister || job.interactive) {
            (true, _) => Stream::Terminal,
            (_, true) => Stream::Null,
            _ => self.spool(job, kind),
        };
        let (stdout, stderr) = (stdio("OU"), stdio("ER"));
        let stdin = if terminal {
            Stream::Terminal
        } else {
            Stream::Null
        };
        let is_first = code.is_none() && !sister;
        let umask = if is_first { 0o077 } else { 0o022 };
        let leaked = match job.interactive {
            true => vec![3, 4, 9, 10, 13],
            false => vec![9, 11, 14],
        };
        let alarm = self.prolog_alarm(at).unwrap_or(300);
        Run {
            argv,
            env: self.torque_environment(job, at, &shape),
            cwd: format!("{HOME}/mom_priv"),
            umask,
            user: Some((0, vec![0, uid])),
            stdin,
            stdout,
            stderr,
            output_of: Some(uid),
            leaked,
            session: true,
            in_mom: true,
            checked: true,
            // Torque fires 10 s early if the alarm is above 10.
            limit_ms: 1000 * if alarm > 10 { alarm - 10 } else { alarm },
            at_limit: Victims::Session,
            ..Run::default()
        }
    }

    fn torque_environment(&self, job: &Job, at: usize, shape: &str) -> BTreeMap<String, String> {
        let (nodes, ppn) = match job.named {
            true => (0, 1),
            false => (job.gpus.len(), job.tasks),
        };
        let mut env = variables(&[
            ("PATH", "/bin:/usr/bin"),
            ("LANG", "C"),
            ("PBS_RESOURCE_NODES", shape),
            ("PBS_NUM_NODES", &nodes.to_string()),
            ("PBS_NUM_PPN", &ppn.to_string()),
            ("PBS_NP", &(job.tasks as usize * job.gpus.len()).to_string()),
            ("PBS_NODENUM", &at.to_string()),
            ("PBS_MSHOST", &self.nodes[0].name),
            ("PBS_O_WORKDIR", &format!("/home/{}", job.user.0)),
        ]);
        if at == 0 {
            env.insert("PBS_NODEFILE".into(), format!("{HOME}/aux//{}", job.id));
        }
        env
    }
}
