//! Nodes with GPUs, our suite installed on each as a package would, and one PBS server between them.

use super::node::{MomNode, built};
use super::wire::{Ended, Run, Stream};
use crate::double::{Builder, NodeDouble};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// The user whose jobs run.
pub const USER: (&str, u32) = ("alice", 54321);
/// Our programs.
const PROGRAMS: [&str; 5] = ["mps-prologue", "mps-epilogue", "mpsd", "mpsctl", "mps-probe"];
/// The commands of PBS.
const COMMANDS: [&str; 9] = [
    "pbsnodes", "qstat", "qalter", "printjob", "qmgr", "momctl", "qsub", "qselect", "qdel",
];

/// Which PBS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Product {
    /// Torque 6.1.
    Torque,
    /// OpenPBS 23.
    OpenPbs,
}

impl Product {
    /// Its name for our programs.
    pub fn name(self) -> &'static str {
        if self == Self::Torque { "torque" } else { "openpbs" }
    }

    /// The directory with `mom_priv`.
    pub fn home(self) -> &'static str {
        if self == Self::Torque {
            "/var/spool/torque"
        } else {
            "/var/spool/pbs"
        }
    }

    /// The directory with the commands.
    fn commands(self) -> &'static str {
        if self == Self::Torque {
            "/usr/local/bin"
        } else {
            "/opt/pbs/bin"
        }
    }
}

/// A simulated cluster. The nodes go first when it is dropped, then the GPUs, then the directory.
#[derive(Debug)]
pub struct Cluster {
    /// Which PBS.
    pub product: Product,
    /// Its nodes; a job's first node is the first of them that it names.
    pub nodes: Vec<MomNode>,
    /// Their GPUs.
    pub gpus: Vec<NodeDouble>,
    /// OpenPBS's hook keeps the mom waiting no longer than it is shipped to.
    pub impatient_mom: bool,
    place: TempDir,
}

/// A job as it was submitted.
#[derive(Clone, Debug)]
pub struct Job {
    /// `0.vm`
    pub id: String,
    /// `-A`
    pub account: String,
    /// `-l mps=`
    pub resource: String,
    /// GPU numbers on each of the first nodes of the cluster; its length is the number of nodes.
    pub gpus: Vec<Vec<u32>>,
    /// Tasks on each node (ppn, mpiprocs).
    pub tasks: u32,
    /// `qsub -I`
    pub interactive: bool,
    /// `-l place=`
    pub place: String,
    /// Whether pbs_cgroups is enabled, with its devices, and names the GPUs.
    pub cgroups: bool,
    /// Whether its user named the nodes.
    pub named: bool,
    /// More nodes of the job, which the cluster has not.
    pub vnodes_elsewhere: usize,
}

impl Job {
    /// A batch job on the first node with its GPU 0 and four tasks.
    pub fn new(id: &str, account: &str) -> Self {
        let (id, account) = (id.to_owned(), account.to_owned());
        Self {
            id,
            account,
            resource: String::new(),
            gpus: vec![vec![0]],
            tasks: 4,
            interactive: false,
            place: "pack".into(),
            cgroups: true,
            named: false,
            vnodes_elsewhere: 0,
        }
    }

    /// With these GPUs on these many nodes.
    pub fn on(self, gpus: &[&[u32]]) -> Self {
        Self {
            gpus: gpus.iter().map(|one| one.to_vec()).collect(),
            ..self
        }
    }

    /// On a stock OpenPBS, with this place.
    pub fn stock(self, place: &str) -> Self {
        Self {
            place: place.to_owned(),
            cgroups: false,
            ..self
        }
    }

    /// On nodes that its user named.
    pub fn named(self) -> Self {
        Self { named: true, ..self }
    }

    /// Interactive.
    pub fn interactive(self) -> Self {
        Self {
            interactive: true,
            ..self
        }
    }
}

impl Cluster {
    /// `names.len()` nodes with two GPUs each, a server on a host of its own, our suite installed and enabled.
    pub fn new(product: Product, names: &[&str]) -> Self {
        Self::with(product, names, |builder| builder.fast(), "")
    }

    /// The same with other GPUs, and with more lines in `mpsd.toml`.
    pub fn with(product: Product, names: &[&str], gpus: impl Fn(Builder) -> Builder, config: &str) -> Self {
        let place = tempfile::Builder::new()
            .prefix("mom-")
            .tempdir()
            .expect("a directory");
        let server = place.path().join("server");
        std::fs::create_dir_all(server.join("nodes")).expect("a server");
        let write = |name: &str, text: &str| std::fs::write(server.join(name), text).expect("a server");
        write("product", product.name());
        write("server", "pbsserver");
        write(
            "operators",
            &names
                .iter()
                .map(|name| format!("root@{name}\n"))
                .collect::<String>(),
        );
        let double = |name: &&str| {
            write(&format!("nodes/{name}"), "free\n");
            let builder = NodeDouble::builder().name(name).gpus(2, "NVIDIA H200");
            gpus(builder)
                .at(server.join(format!("gpu-{name}")))
                .build()
                .unwrap_or_else(|why| panic!("{why}"))
        };
        let gpus = names.iter().map(double).collect();
        let nodes = names
            .iter()
            .map(|name| MomNode::new(place.path(), name))
            .collect();
        let mut cluster = Self {
            product,
            nodes,
            gpus,
            impatient_mom: false,
            place,
        };
        for at in 0..cluster.nodes.len() {
            cluster.furnish(at, config);
        }
        cluster
    }

    /// What a package, an administrator and a PBS put on a node. A user of this machine with the name or number of ours is none there.
    fn furnish(&mut self, at: usize, config: &str) {
        let product = self.product;
        let node = &mut self.nodes[at];
        let gpu = format!("/var/srv/pbs/gpu-{}", node.name);
        let (user, uid) = USER;
        let (home, commands) = (product.home(), product.commands());
        node.sh(&format!(
            "cd /srv/build && cp {} /usr/bin/ && mkdir -p {commands} && for c in {}; do cp fake-pbs {commands}/$c; done; \
             sed -i '/^{user}:/d; /^[^:]*:[^:]*:{uid}:/d' /etc/passwd /etc/group; \
             echo {user}:x:{uid}:{uid}::/home/{user}:/bin/sh >>/etc/passwd; echo {user}:x:{uid}: >>/etc/group; \
             mkdir -p /home/{user} {home}/mom_priv/jobs {home}/aux {home}/spool {home}/mom_priv/hooks/tmp; \
             chown {uid}:{uid} /home/{user}; chmod 751 {home}/mom_priv; chmod 1777 {home}/spool",
            PROGRAMS.join(" "),
            COMMANDS.join(" "),
        ));
        for (name, mode) in [("profile.d/mpsd.sh", 0o644), ("profile.d/mpsd.csh", 0o644)] {
            node.write(&format!("/etc/{name}"), &shipped(name), mode);
        }
        let text = format!(
            "control = \"{gpu}/nvidia-cuda-mps-control\"\nnvml = \"{gpu}/libnvidia-ml.so.1\"\n{config}"
        );
        node.write("/etc/mpsd/mpsd.toml", &text, 0o644);
        node.write(&format!("{home}/mom_priv/config"), "$logevent 255\n", 0o644);
        if product == Product::OpenPbs {
            let conf = "PBS_SERVER=pbsserver\nPBS_HOME=/var/spool/pbs\nPBS_EXEC=/opt/pbs\n";
            node.write("/etc/pbs.conf", conf, 0o644);
        }
        node.sh("mpsctl pbs install");
        if product == Product::Torque {
            super::torque::hang_up(node);
        }
    }

    /// The server's directory, as this machine sees it.
    pub fn server(&self) -> PathBuf {
        self.place.path().join("server")
    }

    /// State and note of a node, as the server has them.
    pub fn state(&self, node: &str) -> (String, String) {
        let text =
            std::fs::read_to_string(self.server().join("nodes").join(node)).expect("the server's node");
        let (state, note) = text.split_once('\n').unwrap_or((&text, ""));
        (state.to_owned(), note.trim_end().to_owned())
    }

    /// From the start of the job to its first process, as this cluster's moms do it.
    pub fn begin(&mut self, job: &Job) -> Verdict {
        match self.product {
            Product::Torque => self.torque_begin(job),
            Product::OpenPbs => self.openpbs_begin(job),
        }
    }

    /// The job's main shell; `Err`: its launch was rejected.
    pub fn shell(&mut self, job: &Job, script: &str) -> Result<Run, String> {
        match self.product {
            Product::Torque => Ok(self.torque_shell(job, script)),
            Product::OpenPbs => self.openpbs_shell(job, script),
        }
    }

    /// From the end of the job's last process.
    pub fn end(&mut self, job: &Job, code: i32) {
        match self.product {
            Product::Torque => self.torque_end(job, code),
            Product::OpenPbs => self.openpbs_end(job, code),
        }
    }

    /// Everything on every node that a job may not leave behind.
    pub fn leftovers(&mut self) -> Vec<(Vec<String>, Vec<String>, Vec<String>)> {
        let volatile = |line: &String| {
            let spool = [
                "/.layer/home/",
                "/.layer/var/spool/",
                "/.layer/var/lib",
                "/.layer/root",
                "/tmp/",
            ];
            !spool.iter().any(|top| line.starts_with(top))
        };
        let modes: Vec<Vec<String>> = self.gpus.iter().map(NodeDouble::modes).collect();
        let look = |(node, modes): (&mut MomNode, Vec<String>)| {
            let seen = node.snapshot();
            (
                seen.files.into_iter().filter(volatile).collect(),
                seen.processes,
                modes,
            )
        };
        self.nodes.iter_mut().zip(modes).map(look).collect()
    }

    /// The environment that PBS gives to the job's processes.
    pub fn job_environment(&self, job: &Job, at: usize) -> BTreeMap<String, String> {
        let (user, _) = USER;
        let mut env: BTreeMap<String, String> = [
            ("HOME", format!("/home/{user}")),
            ("LOGNAME", user.to_owned()),
            ("USER", user.to_owned()),
            ("SHELL", "/bin/sh".to_owned()),
            ("PATH", "/usr/local/bin:/usr/bin:/bin".to_owned()),
            ("PBS_JOBID", job.id.clone()),
            (
                "PBS_ENVIRONMENT",
                if job.interactive {
                    "PBS_INTERACTIVE"
                } else {
                    "PBS_BATCH"
                }
                .to_owned(),
            ),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        if self.product == Product::Torque {
            let list: Vec<String> = job.gpus[at].iter().map(ToString::to_string).collect();
            env.insert("CUDA_VISIBLE_DEVICES".into(), list.join(","));
            env.insert(
                "PBS_GPUFILE".into(),
                format!("{}/aux//{}gpu", self.product.home(), job.id),
            );
        } else if !job.account.is_empty() {
            env.insert("PBS_ACCOUNT".into(), job.account.clone());
        }
        env
    }

    /// A process of the job's user, its output in the job's files.
    pub fn user_process(&self, job: &Job, at: usize, argv: &[&str]) -> Run {
        let (user, uid) = USER;
        let file = |kind: &str| Stream::File(format!("{}/spool/{}.{kind}", self.product.home(), job.id));
        Run {
            argv: argv.iter().map(|word| (*word).to_owned()).collect(),
            env: self.job_environment(job, at),
            cwd: format!("/home/{user}"),
            umask: 0o022,
            user: Some((uid, vec![uid])),
            stdout: file("OU"),
            stderr: file("ER"),
            session: true,
            ..Run::default()
        }
    }

    /// What the job's processes wrote on a node: output, errors.
    pub fn output(&mut self, job: &Job, at: usize) -> (String, String) {
        let home = self.product.home();
        let mut file = |kind: &str| {
            self.nodes[at]
                .read(&format!("{home}/spool/{}.{kind}", job.id))
                .unwrap_or_default()
        };
        (file("OU"), file("ER"))
    }

    /// A command line of the fake client on the node it runs on; its record goes to `/tmp/records` there.
    pub fn client(options: &str) -> String {
        let gpu = "/var/srv/pbs/gpu-$(hostname)";
        format!("{gpu}/fake-cuda-client --node {gpu} --record /tmp/records {options}")
    }

    /// The clients' own records on a node, and none of them any more.
    pub fn records(&mut self, at: usize) -> Vec<serde_json::Value> {
        let text = self.nodes[at].read("/tmp/records").unwrap_or_default();
        self.nodes[at].sh("rm -f /tmp/records");
        text.lines()
            .map(|line| serde_json::from_str(line).expect("a record"))
            .collect()
    }
}

/// A file of `etc/` as it is shipped.
pub fn shipped(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../etc").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("'{}': {e}", path.display()))
}

/// Where the built programs are; named when one is missing.
pub fn programs_are_built() {
    for name in PROGRAMS
        .iter()
        .chain(&["fake-pbs", "mom-node", "fake-mps-control"])
    {
        assert!(
            built().join(name).exists(),
            "no '{}': run cargo build --workspace first",
            built().join(name).display()
        );
    }
}

/// What a mom makes of a prologue's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The job runs.
    Runs,
    /// It is aborted and not tried again.
    Aborted,
    /// It is queued again, and soon tried again.
    Requeued,
}

impl Verdict {
    /// As recorded; interactive jobs are aborted by everything that is no success.
    pub fn of(product: Product, ended: Ended, interactive: bool) -> Self {
        let verdict = match ended {
            Ended::Code(0) | Ended::NoScript => Self::Runs,
            // Torque does not look at WIFSIGNALED.
            Ended::Signal(_) if product == Product::Torque => Self::Runs,
            Ended::Code(1) => Self::Aborted,
            _ => Self::Requeued,
        };
        if interactive && verdict == Self::Requeued {
            Self::Aborted
        } else {
            verdict
        }
    }
}
