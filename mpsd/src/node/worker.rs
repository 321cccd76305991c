//! NVML in a process of its own: it can hang in the driver, and its caller must not hang with it.
//!
//! `mpsd --nvml LIBRARY` answers questions, one line of JSON each, until its descriptor closes.

use super::nvml::{Nvml, NvmlError};
use super::{failure, unless_scarce};
use mpsd_core::failure::{Evidence, Fault, Undetermined};
use mpsd_core::{ComputeMode, Failure, GpuUuid, Inventory};
use mpsd_sys::Exit;
use mpsd_sys::confine;
use mpsd_sys::deadline::Deadline;
use mpsd_sys::descriptors::read_line;
use mpsd_sys::process::ProcessId;
use mpsd_sys::spawn::{Child, Spawn};
use nix::errno::Errno;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::getppid;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

const WORKER_FD: i32 = 3;
const WORKER: &str = "NVML worker";
/// Longest answer, bytes: 16 GPUs' inventory has a few kilobytes.
const LONGEST: usize = 1 << 20;
/// For a killed worker to go; in the driver it may stay.
const GRACE: Duration = Duration::from_millis(200);

/// Where the driver's packages put it.
const MODPROBE: &str = "/usr/bin/nvidia-modprobe";
const MODPROBE_TIME: Duration = Duration::from_secs(5);

#[derive(Debug, Serialize, Deserialize)]
pub enum Question {
    Inventory,
    /// The same, but looks at these GPUs alone.
    InventoryAgain(Inventory, Vec<GpuUuid>),
    Mode(GpuUuid),
    SetMode(GpuUuid, ComputeMode),
    Driver,
    Processes(GpuUuid),
    /// Milliwatts: a `u32`.
    Power(GpuUuid),
    /// Has no answer: NVML takes 7 ms for the first question about a GPU.
    Attach(GpuUuid),
}

pub fn serve(library: &str) -> Result<(), String> {
    let fd = mpsd_sys::descriptors::take(WORKER_FD)
        .map_err(|e| format!("descriptor {WORKER_FD}: {e}"))?;
    let mut stream = UnixStream::from(fd);
    tie_to_asker(&stream)?;
    confine::nvml_worker()?;
    let reader = BufReader::new(stream.try_clone().map_err(|e| e.to_string())?);
    // Now, so that the first question does not wait for it.
    let nvml = Nvml::load(library);
    for line in reader.lines() {
        let line = line.map_err(|e| e.to_string())?;
        let question = serde_json::from_str(&line).map_err(|e| format!("not a question: {e}"))?;
        let Some(mut answer) = answer(&nvml, question).map_err(|e| e.to_string())? else {
            continue;
        };
        answer.push('\n');
        stream
            .write_all(answer.as_bytes())
            .map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// An end undoes what a killed asker began, and the worker must change nothing after that.
fn tie_to_asker(stream: &UnixStream) -> Result<(), String> {
    set_pdeathsig(Signal::SIGKILL).map_err(|e| format!("cannot end with the asker: {e}"))?;
    let asker = getsockopt(stream, PeerCredentials).map_err(|e| format!("who asks: {e}"))?;
    match asker.pid() == getppid().as_raw() {
        true => Ok(()),
        false => Err("the asker is gone".to_owned()),
    }
}

fn answer(
    nvml: &Result<Nvml, NvmlError>,
    question: Question,
) -> serde_json::Result<Option<String>> {
    use serde_json::to_string;
    let text = match (nvml, question) {
        (nvml, Question::Attach(gpu)) => {
            nvml.iter().for_each(|nvml| nvml.attach(&gpu));
            return Ok(None);
        }
        (Err(error), _) => to_string(&Err::<(), _>(error)),
        (Ok(nvml), Question::Inventory) => to_string(&nvml.inventory()),
        (Ok(nvml), Question::InventoryAgain(known, gpus)) => {
            to_string(&nvml.inventory_again(known, &gpus))
        }
        (Ok(nvml), Question::Mode(gpu)) => to_string(&nvml.compute_mode(&gpu)),
        (Ok(nvml), Question::SetMode(gpu, mode)) => to_string(&nvml.set_compute_mode(&gpu, mode)),
        (Ok(nvml), Question::Driver) => to_string(&nvml.driver()),
        (Ok(nvml), Question::Processes(gpu)) => to_string(&nvml.processes(&gpu)),
        (Ok(nvml), Question::Power(gpu)) => to_string(&nvml.power(&gpu)),
    };
    text.map(Some)
}

#[derive(Debug)]
pub struct NvmlWorker {
    child: Child,
    stream: UnixStream,
    pub(super) limit: Duration,
    silent: bool,
}

impl NvmlWorker {
    /// `program` is `mpsd`; each answer must come within `limit`. A program of root's that cannot
    /// be started is a fault, unless processes, descriptors or time ran out.
    pub fn start(program: &Path, library: &str, limit: Duration) -> Result<Self, Failure> {
        let broken = |why: String, errno: Option<Errno>| {
            let evidence = errno.and_then(|errno| unless_scarce(Evidence::Storage, Some(errno)));
            failure(evidence, WORKER, why)
        };
        let pair = UnixStream::pair().map_err(|e| {
            let errno = e.raw_os_error().map(Errno::from_raw);
            broken(format!("no socket to be had: {e}"), errno)
        });
        let (stream, theirs) = pair?;
        // NVML needs this file, and makes those of the GPUs itself.
        make_device("/dev/nvidiactl", &["-c", "255"]);
        let mut spawn = Spawn::new(program);
        spawn.args = vec!["--nvml".into(), library.into()];
        spawn.inherit = vec![(theirs.into(), WORKER_FD)];
        let child = spawn
            .start(Deadline::after(limit))
            .map_err(|e| broken(e.to_string(), e.errno()))?;
        Ok(Self {
            child,
            stream,
            limit,
            silent: false,
        })
    }

    /// Has NVML look at `gpus` before they are asked about. The first question reports a failure.
    pub fn attach(&mut self, gpus: &[GpuUuid]) {
        for gpu in gpus {
            let question = serde_json::to_string(&Question::Attach(gpu.clone()));
            let _ = writeln!(self.stream, "{}", question.unwrap_or_default());
        }
    }

    /// The process, if it gave no answer in its time.
    pub fn silent(&self) -> Option<ProcessId> {
        self.child.id().filter(|_| self.silent)
    }

    pub fn ask<T: DeserializeOwned>(&mut self, question: &Question) -> Result<T, Failure> {
        let lost = |why: String| Failure::from(Undetermined::new(WORKER, why));
        let mut line = serde_json::to_string(question).map_err(|e| lost(e.to_string()))?;
        line.push('\n');
        // It may have died: NVML is loaded before the first question.
        if self.stream.write_all(line.as_bytes()).is_err() {
            return Err(self.died());
        }
        let asked = Instant::now();
        let text = match read_line(self.stream.as_fd(), Deadline::after(self.limit), LONGEST) {
            Ok(Some(text)) => text,
            // Reset: the question that it did not read.
            Ok(None) | Err(Errno::ECONNRESET) => return Err(self.died()),
            Err(Errno::ETIMEDOUT) => {
                // The asker must find out what holds it.
                self.silent = true;
                let why = match self.limit.is_zero() {
                    true => "there was no time left for an answer".to_owned(),
                    false => format!("no answer within {} ms", asked.elapsed().as_millis()),
                };
                return Err(Undetermined::new("NVML", why).into());
            }
            Err(errno) => return Err(lost(errno.to_string())),
        };
        let answer: Result<T, NvmlError> =
            serde_json::from_slice(&text).map_err(|e| lost(format!("unreadable answer: {e}")))?;
        answer.map_err(
            |NvmlError {
                 what,
                 why,
                 evidence,
             }| failure(evidence, what, why),
        )
    }

    /// Only a crash is evidence, against the library. SIGKILL: a job has used up the memory.
    /// SIGABRT: an allocation failed. SIGBUS: a page could not be had. 127: the loader. 1: perhaps
    /// an older program, while a package is replaced.
    fn died(&mut self) -> Failure {
        let why = match self.child.wait(Deadline::after(GRACE)) {
            Some(end) if is_crash(&end) => {
                let why = format!("the process that called it ended by {end}");
                return Fault::new(Evidence::Nvml, "NVML", why).into();
            }
            Some(Exit::Code(0 | 1)) => {
                "the process that was to call it gave up: is mpsd being upgraded?".to_owned()
            }
            Some(end) => format!("the process that called it ended by {end}: has memory run out?"),
            None => "the process that called it said no more".to_owned(),
        };
        Undetermined::new("NVML", why).into()
    }
}

fn is_crash(end: &Exit) -> bool {
    let crashes = [Signal::SIGSEGV, Signal::SIGILL, Signal::SIGFPE];
    match *end {
        Exit::Signal(signal) => crashes.iter().any(|crash| signal == *crash as i32),
        Exit::Code(_) => false,
    }
}

impl Drop for NvmlWorker {
    fn drop(&mut self) {
        // NVML's own shutdown would cost its caller some milliseconds.
        self.child.kill(Deadline::after(GRACE));
    }
}

/// Makes `device` and loads its module, if no program has done that since the node booted. NVIDIA's
/// libraries do it by `nvidia-modprobe`, a set-user-id program that processes which we confine
/// cannot start. If it fails, the process that needs the file says so.
pub(super) fn make_device(device: &str, arguments: &[&str]) {
    if Path::new(device).exists()
        || !Path::new(MODPROBE).exists()
        || !nix::unistd::geteuid().is_root()
    {
        return;
    }
    if let Ok(mut program) = Spawn::trusted(Path::new(MODPROBE)) {
        program.args = arguments.iter().map(Into::into).collect();
        program.env = vec![("PATH".into(), "/usr/sbin:/usr/bin:/sbin:/bin".into())];
        let _ = program.run(Deadline::after(MODPROBE_TIME), LONGEST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_comes_too_late_proves_nothing() {
        // A child can end before its parent looks, but not each time.
        let start = |_| {
            NvmlWorker::start(Path::new("/bin/true"), "libnvidia-ml.so.1", Duration::ZERO).err()
        };
        let late = (0..100).find_map(start);
        assert!(matches!(late, Some(Failure::Undetermined(_))), "{late:?}");
        let absent = NvmlWorker::start(Path::new("/nowhere/mpsd"), "", Duration::from_secs(5));
        assert!(
            matches!(absent.err(), Some(Failure::Fault(_))),
            "root's own program is gone"
        );
    }

    #[test]
    fn a_worker_proves_nothing_but_by_a_crash() {
        let ends = |program: &str| {
            let worker = NvmlWorker::start(
                Path::new(program),
                "libnvidia-ml.so.1",
                Duration::from_secs(5),
            );
            worker
                .and_then(|mut worker| worker.ask::<mpsd_core::Inventory>(&Question::Inventory))
                .expect_err("no answer")
        };
        for program in ["/bin/false", "/bin/true"] {
            let given_up = ends(program);
            assert!(matches!(given_up, Failure::Undetermined(_)), "{given_up}");
        }
        for signal in [Signal::SIGSEGV, Signal::SIGILL, Signal::SIGFPE] {
            assert!(is_crash(&Exit::Signal(signal as i32)), "{signal}");
        }
        // Something ran out, it was confined too much, or ended from outside.
        use Signal::{SIGABRT, SIGBUS, SIGKILL, SIGSYS, SIGTERM, SIGXCPU, SIGXFSZ};
        for signal in [SIGKILL, SIGABRT, SIGBUS, SIGXCPU, SIGXFSZ, SIGSYS, SIGTERM] {
            assert!(!is_crash(&Exit::Signal(signal as i32)), "{signal}");
        }
        assert!(!is_crash(&Exit::Code(127)));
    }
}
