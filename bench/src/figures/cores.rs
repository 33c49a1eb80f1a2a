//! Keeping threads to cores, for the few measurements that would otherwise measure the scheduler.

use std::fs;

use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

/// The cores that this process may use.
pub(crate) struct Cores {
    all: Option<CpuSet>,
}

impl Cores {
    /// Those of the calling thread.
    pub(crate) fn of_this_thread() -> Cores {
        Cores { all: sched_getaffinity(None).ok() }
    }

    /// Keeps the calling thread to one of them. It is an attempt: without it the figure is only less steady.
    pub(crate) fn keep_to(&self, index: usize) {
        if let Some(core) = self.one(index) {
            let _ = sched_setaffinity(None, &core);
        }
    }

    /// Keeps all threads of a process to one of them.
    pub(crate) fn keep_process_to(&self, process: u32, index: usize) {
        if let Some(core) = self.one(index) {
            set_process(process, &core);
        }
    }

    /// Lets the calling thread go.
    pub(crate) fn release(&self) {
        if let Some(all) = &self.all {
            let _ = sched_setaffinity(None, all);
        }
    }

    /// Lets all threads of a process go.
    pub(crate) fn release_process(&self, process: u32) {
        if let Some(all) = &self.all {
            set_process(process, all);
        }
    }

    fn one(&self, index: usize) -> Option<CpuSet> {
        let all = self.all.as_ref()?;
        let core = (0..CpuSet::MAX_CPU).filter(|&core| all.is_set(core)).nth(index)?;
        let mut one = CpuSet::new();
        one.set(core);
        Some(one)
    }
}

fn set_process(process: u32, cores: &CpuSet) {
    let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else { return };
    for thread in threads.flatten() {
        let number = thread.file_name().to_str().and_then(|name| name.parse().ok());
        if let Some(thread) = number.and_then(Pid::from_raw) {
            let _ = sched_setaffinity(Some(thread), cores);
        }
    }
}
