//! The static partitions of a job's ranks: how many multiprocessors of a GPU each rank has. Only
//! NVIDIA's daemon knows how many a GPU has in all, and it refuses what does not fit.

use super::draft::Draft;
use mpsd_core::bind::Bind;
use mpsd_core::gpu::{DRIVER_OF_13_1, MOST_CLIENTS};
use mpsd_core::partitions::{LEAST_CAPABILITY, Partition, chunk};
use mpsd_core::request::{Key, Sms, Syntax};
use mpsd_core::{Gpu, Refusal};

impl Draft<'_> {
    /// The partitions, by rank; none if the request has none.
    pub fn partitions(&self) -> Result<Vec<Partition>, Refusal> {
        let Some(sms) = &self.request.sms else {
            return Ok(Vec::new());
        };
        self.check_node()?;
        let all = self.by_rank(sms)?;
        let count = all.len();
        let one = |(rank, sms): (usize, u32)| {
            let gpu = self.gpu_of(rank, count)?;
            let chunk = chunk(gpu);
            if sms % chunk != 0 {
                let why = format!(
                    "a partition of GPU {} '{}' is made of chunks of {chunk} multiprocessors",
                    gpu.index, gpu.name
                );
                let more = sms.next_multiple_of(chunk);
                let allowed = match more - chunk {
                    0 => format!("a multiple of {chunk}, such as {more}"),
                    less => format!("a multiple of {chunk}, such as {less} or {more}"),
                };
                return Err(self.refused(why, allowed));
            }
            Ok(Partition {
                rank: u32::try_from(rank).unwrap_or(u32::MAX),
                gpu: gpu.uuid.clone(),
                sms,
                chunks: sms / chunk,
                id: String::new(),
            })
        };
        all.into_iter().enumerate().map(one).collect()
    }

    fn refused(&self, why: impl Into<String>, allowed: impl Into<String>) -> Refusal {
        self.refuse(Key::Sms, why, allowed)
    }

    fn check_node(&self) -> Result<(), Refusal> {
        if !self.inventory.has_driver(DRIVER_OF_13_1) {
            let why = match self.inventory.driver.as_str() {
                "" => "NVML does not say which driver this node has".to_owned(),
                driver => format!("this node has driver {driver}, which has no static partitions"),
            };
            let allowed = format!("a node with driver {DRIVER_OF_13_1} or a later one");
            return Err(self.refused(why, allowed));
        }
        if let Some(old) = self
            .gpus
            .iter()
            .find(|gpu| gpu.capability < LEAST_CAPABILITY)
        {
            let why = format!("GPU {} '{}' has no static partitions", old.index, old.name);
            return Err(self.refused(why, "a GPU of Ampere (compute capability 8.0) or later"));
        }
        if let Some(mig) = self.gpus.iter().find(|gpu| gpu.uuid.is_mig()) {
            let why = "is a MIG device, and only whole GPUs are documented to be partitioned so";
            return Err(self.refused(format!("{} {why}", mig.uuid), "a whole GPU"));
        }
        self.settings.ceilings.threads.map_or(Ok(()), |ceiling| {
            let why = format!(
                "this site's ceiling of {ceiling} % of the threads does not hold for partitions"
            );
            Err(self.refused(why, "MPS_THREADS"))
        })
    }

    fn by_rank(&self, sms: &Sms) -> Result<Vec<u32>, Refusal> {
        let (tasks, gpus) = (self.tasks, self.gpus.len());
        // A user may ask OpenPBS for any number of tasks, so this bounds the list.
        let most = MOST_CLIENTS.saturating_mul(gpus.try_into().unwrap_or(u32::MAX));
        if let Some(tasks) = tasks.filter(|tasks| *tasks > most) {
            let why = format!(
                "the job has {tasks} tasks on this node, and {gpus} GPUs have no partition for each"
            );
            return Err(self.refused(why, format!("at most {MOST_CLIENTS} tasks a GPU")));
        }
        match (sms, tasks) {
            (Sms::Uniform(sms), Some(tasks)) => Ok(vec![*sms; tasks as usize]),
            (Sms::Uniform(_), None) => {
                let why = "the scheduler does not say how many tasks the job has on this node";
                let list = "a list by local rank, such as 16:16";
                let allowed = match self.syntax {
                    // Slurm tells a prolog only what the user said
                    // (docs/facts/slurm.md#environment-of-job_prolog).
                    Syntax::Flags => format!("-n with the number of tasks, or {list}"),
                    Syntax::Account | Syntax::Resource => list.to_owned(),
                };
                Err(self.refused(why, allowed))
            }
            (Sms::PerRank(all), Some(tasks)) if tasks as usize > all.len() => {
                let numbers = all.len();
                let why = format!("the job has {tasks} tasks on this node, and {numbers} numbers");
                Err(self.refused(why, "a number for each of them"))
            }
            (Sms::PerRank(all), _) => Ok(all.clone()),
        }
    }

    /// The GPU of a rank, of `count` ranks. Its partition lies there, so the rank can use no other
    /// GPU.
    fn gpu_of(&self, rank: usize, count: usize) -> Result<&Gpu, Refusal> {
        let gpus = self.gpus.len();
        let place = match self.request.bind {
            _ if gpus < 2 => 0,
            None | Some(Bind::Cyclic | Bind::None) => rank % gpus,
            Some(Bind::Block | Bind::Auto) => rank * gpus / count,
            Some(Bind::Closest) => {
                let why = "which GPU is closest to a rank is known when it runs, and its partition is made before";
                return Err(self.refused(why, "MPS_BIND=block or cyclic"));
            }
        };
        let gpu = self.gpus.get(place).copied();
        gpu.ok_or_else(|| self.refused("the job has no GPU on this node", "a job with GPUs"))
    }
}
