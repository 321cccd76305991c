//! Nodes with GPUs and our suite as a package installs it, and one PBS server for all.

use super::node::MomNode;
use super::wire::{Ended, Run, Stream, variables};
use crate::double::{Builder, NodeDouble};
use crate::run::{PROGRAMS, chmod};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// The jobs' user and another one. They exist only on the bed's nodes.
pub const USER: (&str, u32) = ("alice", 54321);
pub const OTHER_USER: (&str, u32) = ("bob", 54322);
const PBS_COMMANDS: &str = "pbsnodes qstat qalter printjob qmgr momctl qsub qselect qdel";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Product {
    Torque,
    OpenPbs,
}

impl Product {
    pub const ALL: [Self; 2] = [Self::Torque, Self::OpenPbs];

    fn words(self) -> [&'static str; 3] {
        match self {
            Self::Torque => ["torque", "/var/spool/torque", "/usr/local/bin"],
            Self::OpenPbs => ["openpbs", "/var/spool/pbs", "/opt/pbs/bin"],
        }
    }

    pub fn name(self) -> &'static str {
        self.words()[0]
    }

    pub fn home(self) -> &'static str {
        self.words()[1]
    }
}

#[derive(Clone, Debug)]
pub struct Leftovers {
    pub files: Vec<String>,
    pub processes: Vec<String>,
    pub modes: Vec<String>,
}

#[derive(Debug)]
pub struct Cluster {
    pub product: Product,
    pub nodes: Vec<MomNode>,
    pub gpus: Vec<NodeDouble>,
    /// OpenPBS's hook waits in the mom only as long as the shipped hook does.
    pub impatient_mom: bool,
    before: Vec<Leftovers>,
    jobs: u32,
    place: TempDir,
}

#[derive(Clone, Debug, Default)]
pub struct Job {
    pub id: String,
    pub user: (&'static str, u32),
    pub account: String,
    pub resource: String,
    pub queue: &'static str,
    /// Its batch script, which its mom has before the job begins.
    pub script: &'static str,
    pub gpus: Vec<Vec<u32>>,
    pub tasks: u32,
    pub interactive: bool,
    /// `-l place=` on an OpenPBS without pbs_cgroups, in which nothing names the GPUs.
    pub stock_place: Option<String>,
    pub named: bool,
    /// Torque's `gpus=N:shared`.
    pub shared: bool,
    /// What an OpenPBS counts of the vnode of each of its GPUs: `mps_shares=4`.
    pub of_vnodes: &'static str,
    /// Its request at qsub.
    pub select: String,
    /// Further nodes of the job that the cluster does not have.
    pub vnodes_elsewhere: usize,
}

impl Job {
    pub fn new(id: &str, account: &str) -> Self {
        Self {
            id: id.to_owned(),
            user: USER,
            account: account.to_owned(),
            gpus: vec![vec![0]],
            tasks: 4,
            queue: "batch",
            script: "mpirun -n 4 ./prog\n",
            ..Self::default()
        }
    }

    pub fn on(mut self, gpus: &[&[u32]]) -> Self {
        self.gpus = gpus.iter().map(|gpus| gpus.to_vec()).collect();
        self
    }

    pub fn stock(mut self, place: &str) -> Self {
        self.stock_place = Some(place.to_owned());
        self
    }

    pub fn tasks(mut self, tasks: u32) -> Self {
        self.tasks = tasks;
        self
    }

    pub fn with_script(mut self, script: &'static str) -> Self {
        self.script = script;
        self
    }

    pub fn in_queue(mut self, queue: &'static str) -> Self {
        self.queue = queue;
        self
    }

    pub fn of(mut self, user: (&'static str, u32)) -> Self {
        self.user = user;
        self
    }

    pub fn shared(mut self) -> Self {
        self.shared = true;
        self
    }

    pub fn interactive(mut self) -> Self {
        self.interactive = true;
        self
    }

    pub(super) fn place(&self) -> &str {
        self.stock_place.as_deref().unwrap_or("pack")
    }
}

impl Cluster {
    pub fn new(product: Product, names: &[&str]) -> Self {
        Self::with(product, names, Builder::fast, "")
    }

    pub fn with(
        product: Product,
        names: &[&str],
        gpus: impl Fn(Builder) -> Builder,
        config: &str,
    ) -> Self {
        let place = TempDir::with_prefix("mom-").expect("a directory");
        let server = place.path().join("server");
        for dir in ["nodes", "jobs", "vnodes"] {
            std::fs::create_dir_all(server.join(dir)).expect("a server");
        }
        let double = |name: &&str| {
            let builder = NodeDouble::builder().name(name).gpus(2, "NVIDIA H200");
            let built = gpus(builder).at(server.join(format!("gpu-{name}"))).build();
            built.unwrap_or_else(|why| panic!("{why}"))
        };
        let nodes = names.iter().map(|name| MomNode::new(place.path(), name));
        let mut cluster = Self {
            product,
            gpus: names.iter().map(double).collect(),
            nodes: nodes.collect(),
            impatient_mom: false,
            before: Vec::new(),
            jobs: 0,
            place,
        };
        cluster.serve("product", product.name());
        cluster.serve("server", "pbsserver");
        let operators: String = names.iter().map(|name| format!("root@{name}\n")).collect();
        cluster.serve("operators", &operators);
        for (at, name) in names.iter().enumerate() {
            cluster.serve(&format!("nodes/{name}"), "free\n");
            cluster.furnish(at, config);
        }
        cluster.mark();
        cluster
    }

    fn furnish(&mut self, at: usize, config: &str) {
        let product = self.product;
        let node = &mut self.nodes[at];
        let gpu = format!("/var/srv/pbs/gpu-{}", node.name);
        let [_, home, commands] = product.words();
        node.sh(&format!(
            "cd /srv/build && cp {} /usr/bin/ && mkdir -p {commands} && \
             for c in {PBS_COMMANDS}; do cp pbs-double {commands}/$c; done; \
             mkdir -p {home}/mom_priv/jobs {home}/aux {home}/spool {home}/mom_priv/hooks/tmp; \
             chmod 751 {home}/mom_priv; chmod 1777 {home}/spool",
            PROGRAMS.join(" "),
        ));
        for (user, uid) in [USER, OTHER_USER] {
            node.sh(&format!(
                "sed -i '/^{user}:/d; /^[^:]*:[^:]*:{uid}:/d' /etc/passwd /etc/group; \
                 echo {user}:x:{uid}:{uid}::/home/{user}:/bin/sh >>/etc/passwd; echo {user}:x:{uid}: >>/etc/group; \
                 mkdir /home/{user}; chown {uid}:{uid} /home/{user}"
            ));
        }
        for name in ["profile.d/mpsd.sh", "profile.d/mpsd.csh"] {
            node.write(&format!("/etc/{name}"), &shipped(name), 0o644);
        }
        let paths = format!(
            "control = \"{gpu}/nvidia-cuda-mps-control\"\nnvml = \"{gpu}/libnvidia-ml.so.1\"\n"
        );
        node.write("/etc/mpsd/mpsd.toml", &(paths + config), 0o644);
        node.write(&format!("{home}/mom_priv/config"), "$logevent 255\n", 0o644);
        if product == Product::OpenPbs {
            let conf = "PBS_SERVER=localhost\nPBS_HOME=/var/spool/pbs\nPBS_EXEC=/opt/pbs\n";
            node.write("/etc/pbs.conf", conf, 0o644);
            node.write(&format!("{home}/mom_priv/mom.lock"), "1\n", 0o600);
        }
        node.sh("mpsctl pbs install");
        if product == Product::Torque {
            super::torque::hang_up(node);
        }
    }

    pub fn job(&mut self, account: &str) -> Job {
        self.jobs += 1;
        let host = match self.product {
            Product::Torque => "vm",
            Product::OpenPbs => "localhost",
        };
        Job::new(&format!("{}.{host}", self.jobs), account)
    }

    pub fn server(&self) -> PathBuf {
        self.place.path().join("server")
    }

    pub fn serve(&self, name: &str, text: &str) {
        let written = std::fs::write(self.server().join(name), text);
        written.unwrap_or_else(|why| panic!("server's '{name}': {why}"));
    }

    /// A missing one is empty.
    pub fn served(&self, name: &str) -> String {
        std::fs::read_to_string(self.server().join(name)).unwrap_or_default()
    }

    pub fn open_to_users(&self) {
        let server = self.server();
        self.serve("calls", &self.served("calls"));
        chmod(&server.join("calls"), 0o666);
        for dir in ["queue", "jobs", "deleted"].map(|dir| server.join(dir)) {
            std::fs::create_dir_all(&dir).expect("the server's directory");
            chmod(&dir, 0o777);
        }
    }

    pub fn state(&self, node: &str) -> (String, String) {
        let text = self.served(&format!("nodes/{node}"));
        let (state, note) = text.split_once('\n').unwrap_or((&text, ""));
        (state.to_owned(), note.trim_end().to_owned())
    }

    pub fn begin(&mut self, job: &Job) -> Verdict {
        match self.product {
            Product::Torque => {
                self.has_script(job);
                self.torque_begin(job)
            }
            // The server sends a job's script after the hooks on execjob_begin (recorded).
            Product::OpenPbs => self.openpbs_begin(job),
        }
    }

    pub(super) fn has_script(&mut self, job: &Job) {
        if !job.interactive {
            let id = match self.product {
                // As the mom's own file of a subjob (source: req_jobscript).
                Product::Torque => job.id.replace('[', "-").replace(']', ""),
                Product::OpenPbs => job.id.clone(),
            };
            let file = format!("{}/mom_priv/jobs/{id}.SC", self.product.home());
            self.nodes[0].write(&file, job.script, 0o644);
        }
    }

    pub fn shell(&mut self, job: &Job, script: &str) -> Result<Run, String> {
        match self.product {
            Product::Torque => Ok(self.torque_shell(job, script)),
            Product::OpenPbs => self.openpbs_shell(job, script),
        }
    }

    /// By TM, without a shell or a profile; `Err`: its launch was rejected.
    pub fn task(&mut self, job: &Job, at: usize, argv: &[&str]) -> Result<Ended, String> {
        match self.product {
            Product::Torque => Ok(self.torque_task(job, at, argv, &[])),
            Product::OpenPbs => self.openpbs_task(job, at, argv),
        }
    }

    pub fn end(&mut self, job: &Job, code: i32) {
        match self.product {
            Product::Torque => self.torque_end(job, code),
            Product::OpenPbs => self.openpbs_end(job),
        }
    }

    pub fn leftovers(&mut self) -> Vec<Leftovers> {
        let look = |(node, gpus): (&mut MomNode, &NodeDouble)| {
            let found = node.snapshot();
            let of_test = ["/tmp/", "/.layer/root", "/.layer/sh.out"];
            let kept = |line: &String| !of_test.iter().any(|top| line.starts_with(top));
            Leftovers {
                files: found.files.into_iter().filter(kept).collect(),
                processes: found.processes,
                modes: gpus.modes(),
            }
        };
        self.nodes.iter_mut().zip(&self.gpus).map(look).collect()
    }

    pub fn mark(&mut self) {
        self.before = self.leftovers();
    }

    /// As made or marked, except for the node's own files in `/run/mpsd`.
    pub fn is_as_before(&mut self) {
        let of_node = [
            "/run/mpsd ",
            "/run/mpsd/jobs ",
            "/run/mpsd/gpus ",
            "/run/mpsd/shared ",
            "/run/mpsd/reports",
            "/run/mpsd/lock ",
            "/run/mpsd/ledger ",
            "/run/mpsd/.ledger.lock ",
        ];
        let after = self.leftovers();
        for (node, (before, after)) in self.before.iter().zip(after).enumerate() {
            let known = |line: &String| {
                before.files.contains(line) || of_node.iter().any(|own| line.starts_with(own))
            };
            let new: Vec<&String> = after.files.iter().filter(|line| !known(line)).collect();
            assert!(new.is_empty(), "left on node {node}: {new:#?}");
            let left = after.processes;
            assert!(left.is_empty(), "left on node {node}: {left:#?}");
            assert_eq!(before.modes, after.modes, "compute modes of node {node}");
        }
    }

    pub fn job_environment(&self, job: &Job, at: usize) -> BTreeMap<String, String> {
        let user = job.user.0;
        let kind = match job.interactive {
            true => "PBS_INTERACTIVE",
            false => "PBS_BATCH",
        };
        let mut env = variables(&[
            ("HOME", &format!("/home/{user}")),
            ("LOGNAME", user),
            ("USER", user),
            ("SHELL", "/bin/sh"),
            ("PATH", "/usr/local/bin:/usr/bin:/bin"),
            ("PBS_JOBID", &job.id),
            ("PBS_ENVIRONMENT", kind),
        ]);
        if self.product == Product::Torque {
            let list: Vec<String> = job.gpus[at].iter().map(ToString::to_string).collect();
            let file = format!("{}/aux//{}gpu", self.product.home(), job.id);
            env.extend(variables(&[
                ("CUDA_VISIBLE_DEVICES", &list.join(",")),
                ("PBS_GPUFILE", &file),
            ]));
        } else {
            if !job.account.is_empty() {
                env.insert("PBS_ACCOUNT".into(), job.account.clone());
            }
            // As pbs_cgroups does in execjob_launch, before our hook.
            if job.stock_place.is_none() {
                let list = self.uuids_of(at, &job.gpus[at]).join(r"\,");
                env.insert("CUDA_VISIBLE_DEVICES".into(), list);
            }
        }
        env
    }

    pub(super) fn uuids_of(&self, at: usize, gpus: &[u32]) -> Vec<String> {
        let uuids = self.gpus[at].uuids();
        gpus.iter()
            .map(|gpu| uuids[*gpu as usize].clone())
            .collect()
    }

    pub(super) fn spool(&self, job: &Job, kind: &str) -> Stream {
        Stream::File(format!("{}/spool/{}.{kind}", self.product.home(), job.id))
    }

    pub fn user_process(&self, job: &Job, at: usize, argv: &[&str]) -> Run {
        let (user, uid) = job.user;
        Run {
            argv: argv.iter().map(|word| (*word).to_owned()).collect(),
            env: self.job_environment(job, at),
            cwd: format!("/home/{user}"),
            umask: 0o022,
            user: Some((uid, vec![uid])),
            stdout: self.spool(job, "OU"),
            stderr: self.spool(job, "ER"),
            output_of: Some(uid),
            session: true,
            ..Run::default()
        }
    }

    pub fn output(&mut self, job: &Job, at: usize) -> (String, String) {
        let spool = format!("{}/spool/{}", self.product.home(), job.id);
        let node = &mut self.nodes[at];
        let mut file = |kind: &str| node.read(&format!("{spool}.{kind}")).unwrap_or_default();
        (file("OU"), file("ER"))
    }

    pub fn told(&mut self, job: &Job) -> String {
        self.output(job, 0).1
    }

    /// In seconds.
    pub(super) fn prolog_alarm(&mut self, at: usize) -> Option<u64> {
        let config = self.nodes[at].read(&format!("{}/mom_priv/config", self.product.home()))?;
        let mut lines = config.lines();
        lines.find_map(|line| line.strip_prefix("$prologalarm ")?.trim().parse().ok())
    }

    /// A shell line of the double of a client on its node. Its record is in `/tmp/records` there.
    pub fn client(options: &str) -> String {
        format!("{} {options}", Self::client_on("$(hostname)"))
    }

    pub fn client_on(node: &str) -> String {
        let gpu = format!("/var/srv/pbs/gpu-{node}");
        format!("{gpu}/cuda-client-double --node {gpu} --record /tmp/records")
    }

    pub fn records(&mut self, at: usize) -> Vec<Value> {
        let text = self.nodes[at].read("/tmp/records").unwrap_or_default();
        self.nodes[at].sh("rm -f /tmp/records");
        let record = |line| serde_json::from_str(line).expect("a record");
        text.lines().map(record).collect()
    }
}

fn shipped(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../etc")
        .join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("'{}': {e}", path.display()))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Runs,
    /// It is aborted and not tried again.
    Aborted,
    Requeued,
}

impl Verdict {
    /// As recorded. Every failure aborts an interactive job.
    pub fn of(ended: Ended, interactive: bool) -> Self {
        match ended {
            // Torque ignores WIFSIGNALED.
            Ended::Code(0) | Ended::NoScript | Ended::Signal(_) => Self::Runs,
            Ended::Code(1) => Self::Aborted,
            _ if interactive => Self::Aborted,
            _ => Self::Requeued,
        }
    }
}
