//! Threads beside those that serve requests, for answers that need other requests to be served first.
//!
//! A server that makes the kernel write its pages waits for requests of the kernel. If serving threads did this, all
//! of them could wait, and no thread would be left to serve those requests.

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};

/// Enough that one long answer does not delay all others; each thread mostly waits.
const THREADS: usize = 4;

type Job = Box<dyn FnOnce() + Send>;

/// The threads. They begin with the first job, and end, with all jobs done, when this is dropped.
#[derive(Default)]
pub(crate) struct Workers(OnceLock<Pool>);

struct Pool {
    jobs: Option<Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// Passes a job to one of the threads. Waiting jobs are bounded by the kernel's requests.
    pub(crate) fn add(&self, job: impl FnOnce() + Send + 'static) {
        let pool = self.0.get_or_init(Pool::start);
        let mut job: Job = Box::new(job);
        if let Some(jobs) = pool.jobs.as_ref().filter(|_| !pool.threads.is_empty()) {
            match jobs.send(job) {
                Ok(()) => return,
                Err(back) => job = back.0,
            }
        }
        // No thread could be started, or all of them have died: this job is late, and has a thread of its own.
        if thread::Builder::new().name("aside".to_owned()).spawn(job).is_err() {
            // The reply goes with the job, and a dropped reply sends EIO.
        }
    }
}

impl Pool {
    fn start() -> Pool {
        let (jobs, queue) = mpsc::channel();
        let queue = Arc::new(Mutex::new(queue));
        let start = |_| {
            let queue = Arc::clone(&queue);
            thread::Builder::new().name("aside".to_owned()).spawn(move || work(&queue)).ok()
        };
        Pool { jobs: Some(jobs), threads: (0..THREADS).filter_map(start).collect() }
    }
}

fn work(queue: &Mutex<Receiver<Job>>) {
    loop {
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        match next {
            Ok(job) => job(),
            Err(_) => return,
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        drop(self.jobs.take());
        for thread in self.threads.drain(..) {
            // A thread that died has reported it.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::{THREADS, Workers};

    #[test]
    fn all_jobs_are_done_before_the_threads_end() {
        let workers = Workers::default();
        let done = Arc::new(AtomicUsize::new(0));
        for _ in 0..100 {
            let done = Arc::clone(&done);
            workers.add(move || {
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        drop(workers);
        assert_eq!(done.load(Ordering::Relaxed), 100);
    }

    #[test]
    fn one_that_waits_holds_up_no_other() {
        let workers = Workers::default();
        let (go, gone) = mpsc::channel::<()>();
        let (told, answer) = mpsc::channel();
        workers.add(move || {
            let _ = gone.recv();
        });
        (1..THREADS).for_each(|_| {
            let told = told.clone();
            workers.add(move || told.send(()).unwrap());
        });
        (1..THREADS).for_each(|_| answer.recv().unwrap());
        drop(go);
    }
}
