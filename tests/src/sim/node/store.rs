//! The simulated node's files: locks, accounts, journals and records.

use super::*;

impl Store for Sim {
    fn lock_gpu(&mut self, gpu: &GpuUuid) -> Result<Held, Failure> {
        self.call("lock_gpu")?;
        let held = self.hold(format!("gpu {gpu}"))?;
        self.step(|world| world.gpu_locks.insert(gpu.clone()));
        Ok(held)
    }

    fn read_account(&mut self, gpu: &GpuUuid) -> Result<Option<Account>, Failure> {
        self.call("read_account")?;
        assert!(
            self.world.borrow().held.contains(&format!("gpu {gpu}")),
            "read without its lock"
        );
        self.step(|world| world.half_written.remove(gpu));
        Ok(self.world.borrow().accounts.get(gpu).cloned())
    }

    fn write_account(&mut self, gpu: &GpuUuid, account: Option<&Account>) -> Result<(), Failure> {
        self.call("write_account")?;
        assert!(
            self.world.borrow().held.contains(&format!("gpu {gpu}")),
            "written without its lock"
        );
        match account {
            Some(account) => {
                self.step(|world| world.half_written.insert(gpu.clone()));
                self.step(|world| {
                    world.half_written.remove(gpu);
                    world.accounts.insert(gpu.clone(), account.clone());
                });
            }
            None => {
                self.step(|world| world.accounts.remove(gpu));
                self.step(|world| world.gpu_locks.remove(gpu));
            }
        }
        Ok(())
    }

    fn gpus_with_files(&mut self) -> Result<Vec<GpuUuid>, Failure> {
        let world = self.world.borrow();
        let all: BTreeSet<&GpuUuid> = world.accounts.keys().chain(&world.gpu_locks).collect();
        Ok(all.into_iter().cloned().collect())
    }

    fn open_job(&mut self, job: &JobId) -> Result<Held, Failure> {
        self.call("open_job")?;
        let held = self.hold(format!("job {job}"))?;
        self.step(|world| world.job_locks.insert(job.clone()));
        self.step(|world| {
            world.jobs.entry(job.clone()).or_default();
        });
        Ok(held)
    }

    fn find_job(&mut self, job: &JobId) -> Result<Option<Held>, Failure> {
        self.call("find_job")?;
        let (directory, lock) = {
            let world = self.world.borrow();
            (world.jobs.contains_key(job), world.job_locks.contains(job))
        };
        if !directory && !lock {
            return Ok(None);
        }
        let held = self.hold(format!("job {job}"))?;
        self.step(|world| world.job_locks.insert(job.clone()));
        if !directory {
            self.step(|world| world.job_locks.remove(job));
            return Ok(None);
        }
        Ok(Some(held))
    }

    fn is_held(&self, job: &JobId) -> bool {
        let name = format!("job {job}");
        self.world.borrow().held.contains(&name) && !self.locks.borrow().contains(&name)
    }

    fn cancel(&mut self, job: &JobId) -> Result<(), Failure> {
        self.call("cancel")?;
        self.step(|world| {
            world.jobs.entry(job.clone()).or_default();
        });
        self.step(|world| world.cancelled.insert(job.clone()));
        Ok(())
    }

    fn is_cancelled(&self, job: &JobId) -> bool {
        self.asked.set(true);
        self.world.borrow().cancelled.contains(job)
    }

    fn has_directory(&self, job: &JobId) -> bool {
        self.world.borrow().jobs.contains_key(job)
    }

    fn has_lock(&self, job: &JobId) -> bool {
        self.world.borrow().job_locks.contains(job)
    }

    fn job_directories(&self) -> Result<Vec<String>, Failure> {
        let world = self.world.borrow();
        Ok(world.jobs.keys().map(JobId::directory_name).collect())
    }

    fn read_journal(&mut self, job: &JobId) -> Result<Option<Journal>, Failure> {
        self.call("read_journal")?;
        Ok(self.world.borrow().jobs.get(job).and_then(|j| j.journal.clone()))
    }

    fn write_journal(&mut self, journal: &Journal) -> Result<(), Failure> {
        self.call("write_journal")?;
        // What is read back is what was written down, not what was meant.
        let text = journal.to_text().expect("a journal is text");
        let read = Journal::parse(&text).expect("its text is a journal");
        self.step(|world| world.jobs.get_mut(&journal.job).map(|j| j.journal = Some(read)))
            .ok_or_else(|| Fault::new(Evidence::Storage, "journal", "no directory").into())
    }

    fn write_record(&mut self, record: &Record) -> Result<(), Failure> {
        let asked = self.asked.get();
        assert!(
            asked || record.state != RecordState::Ready,
            "ready, and not asked whether the job has ended"
        );
        self.call("write_record")?;
        if self.world.borrow().no_room {
            return Err(Undetermined::new("record", "no room").into());
        }
        let record = record.clone();
        match record.state {
            RecordState::Ready => self.assert_proved(&record),
            _ => self.world.borrow_mut().forget_proof(&record.job),
        }
        self.step(|world| {
            world
                .jobs
                .get_mut(&record.job.clone())
                .map(|j| j.record = Some(record))
        })
        .ok_or_else(|| Fault::new(Evidence::Storage, "record", "no directory").into())
    }

    fn is_ready(&self, job: &JobId) -> bool {
        let world = self.world.borrow();
        let record = world.jobs.get(job).and_then(|job| job.record.as_ref());
        record.is_some_and(|record| record.state == RecordState::Ready)
    }

    fn make_directories(&mut self, journal: &Journal, n: usize) -> Result<(), Failure> {
        self.call("make_directories")?;
        let (pipe, log) = JobPaths::daemon_names(n, journal.daemons.len());
        for name in [pipe, log] {
            self.step(|world| {
                let job = world.jobs.get_mut(&journal.job).expect("the job's directory");
                job.directories.insert(name);
            });
        }
        Ok(())
    }

    fn are_locked(&mut self, _: &Journal) -> bool {
        false
    }

    fn remove_directories(&mut self, journal: &Journal, n: usize) -> Result<(), Failure> {
        self.call("remove_directories")?;
        let (pipe, log) = JobPaths::daemon_names(n, journal.daemons.len());
        for name in [pipe, log] {
            self.step(|world| {
                if let Some(job) = world.jobs.get_mut(&journal.job) {
                    job.directories.remove(&name);
                }
            });
        }
        Ok(())
    }

    fn remove_job(&mut self, job: &JobId) -> Result<(), Failure> {
        self.call("remove_job")?;
        // A tree goes piece by piece, in whatever order the directory lists it: the journal first is the worst.
        self.step(|world| world.jobs.get_mut(job).map(|j| j.journal = None));
        self.step(|world| world.jobs.get_mut(job).map(|j| j.record = None));
        self.step(|world| world.cancelled.remove(job));
        self.step(|world| world.jobs.remove(job));
        self.step(|world| world.job_locks.remove(job));
        Ok(())
    }

    fn take_observations(&mut self, _: &JobId) -> Option<Observations> {
        self.point();
        None
    }

    fn killed_tasks(&self, _: &JobId) -> Vec<mpsd_core::killed::KilledTask> {
        Vec::new()
    }

    fn keep_report(&mut self, report: &JobReport) {
        let report = report.clone();
        self.step(|world| world.reports.push(report));
    }

    fn enter_job(&mut self, journal: &Journal, exporter: Exporter, directory: &Path) -> Result<(), String> {
        self.point();
        if self.world.borrow().untold {
            return Err("no room".to_owned());
        }
        for entry in exporters::entries(exporter, journal) {
            self.tell(directory, &entry.file, |text| {
                exporters::with(text, &journal.job, &entry.line)
            });
        }
        Ok(())
    }

    fn strike_job(
        &mut self,
        journal: &Journal,
        exporter: Exporter,
        directory: &Path,
    ) -> Result<Option<String>, Failure> {
        self.call("strike_job")?;
        for entry in exporters::entries(exporter, journal) {
            self.tell(directory, &entry.file, |text| {
                exporters::without(text, &journal.job)
            });
        }
        Ok(None)
    }

    fn count_failure(&mut self, kind: FailureKind) {
        self.world.borrow_mut().failed.push(kind);
    }

    fn lacking(&self) -> Option<String> {
        None
    }

    fn note_failed_start(&mut self, uid: u32, _: &JobId) -> bool {
        self.point();
        let mut world = self.world.borrow_mut();
        world.failed_starts.insert(uid);
        world.failed_starts.len() >= 2
    }

    fn forget_failed_starts(&mut self) {
        self.step(|world| world.failed_starts.clear());
    }

    fn suspicions(&mut self) -> Vec<Suspicion> {
        self.point();
        self.world.borrow().suspicions.clone()
    }

    fn suspect(&mut self, suspicion: &Suspicion) {
        let suspicion = suspicion.clone();
        self.step(|world| {
            if !world.suspicions.iter().any(|s| s.suspect == suspicion.suspect) {
                world.suspicions.push(suspicion);
            }
        });
    }

    fn acquit(&mut self, suspicion: &Suspicion) {
        self.step(|world| world.suspicions.retain(|s| s.suspect != suspicion.suspect));
    }
}
