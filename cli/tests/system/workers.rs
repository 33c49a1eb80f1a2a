//! A load whose workers are processes. Each is this test program once more, with the one test below, which a variable tells
//! to be a worker.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{self, Ground};
use crate::load::{self, Plan, Worker};

/// What a worker is told.
const VARIABLE: &str = "NACRE_LOAD_WORKER";
/// How long a worker may take for an operation, and to notice that the file system is gone.
const LIMIT: Duration = Duration::from_secs(60);
/// What a file system that is gone says.
const GONE: [i32; 3] = [libc::ENOTCONN, libc::ECONNABORTED, libc::EIO];

/// The processes of a load.
pub(crate) struct Workers {
    plan: Plan,
    children: Vec<Child>,
    ledgers: Vec<File>,
    /// Whether a worker has done something since the start.
    begun: Vec<bool>,
    acknowledged: u64,
}

impl Workers {
    /// Starts them; they go on from what their ledgers say.
    pub(crate) fn start(plan: &Plan) -> Workers {
        fs::create_dir_all(&plan.dir).expect("a place for the load");
        fs::create_dir_all(&plan.ledgers).expect("a place for ledgers");
        let begun = vec![false; plan.workers];
        let mut workers =
            Workers { plan: plan.clone(), children: Vec::new(), ledgers: Vec::new(), begun, acknowledged: 0 };
        for number in 0..plan.workers {
            let path = plan.ledger(number);
            // Made here, so that it can be read at once.
            let mut ledger =
                OpenOptions::new().create(true).append(true).read(true).open(path).expect("a ledger");
            ledger.seek(SeekFrom::End(0)).expect("the end of the ledger");
            workers.ledgers.push(ledger);
            workers.children.push(workers.spawn(number));
        }
        workers
    }

    fn spawn(&self, number: usize) -> Child {
        let Plan { dir, ledgers, workers, seed, sync, in_place } = &self.plan;
        let told = serde_json::json!([number, dir, ledgers, workers, seed.to_string(), sync, in_place]);
        let output = File::create(self.output(number)).expect("a file for what it says");
        Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "workers::a_load_of_processes_is_right_on_the_control", "--nocapture"])
            .env(VARIABLE, told.to_string())
            .stdin(Stdio::null())
            .stdout(output.try_clone().expect("a second handle"))
            .stderr(output)
            .spawn()
            .expect("this program runs once more")
    }

    fn output(&self, number: usize) -> PathBuf {
        self.plan.ledgers.join(format!("worker{number}.output"))
    }

    fn said(&self) -> String {
        let said = (0..self.plan.workers).map(|number| fs::read_to_string(self.output(number)));
        said.map(Result::unwrap_or_default).collect()
    }

    /// Operations acknowledged since the start.
    pub(crate) fn acknowledged(&mut self) -> u64 {
        for (ledger, begun) in self.ledgers.iter_mut().zip(&mut self.begun) {
            let mut lines = String::new();
            ledger.read_to_string(&mut lines).expect("the ledger");
            *begun |= !lines.is_empty();
            self.acknowledged += lines.lines().filter(|line| *line == "done").count() as u64;
        }
        self.acknowledged
    }

    /// Waits until they have done `operations`, and each of them something: on a busy machine one may still be starting
    /// when the others are done, and the file system that it is to start on may go away next.
    pub(crate) fn wait_for(&mut self, operations: u64) {
        let end = Instant::now() + LIMIT;
        while self.acknowledged() < operations || !self.begun.iter().all(|begun| *begun) {
            let ended = self.children.iter_mut().any(|child| !matches!(child.try_wait(), Ok(None)));
            assert!(!ended, "a worker ended: {}", self.said());
            assert!(Instant::now() < end, "only {} operations in {LIMIT:?}", self.acknowledged);
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until all have noticed that the file system is gone; gives the operations acknowledged since the start, and
    /// those that were in flight at a time: begun before it, and never acknowledged.
    pub(crate) fn end(mut self, at_ns: u64) -> (u64, usize) {
        for child in std::mem::take(&mut self.children) {
            let status = harness::wait(child, LIMIT).unwrap_or_else(|error| panic!("a worker: {error}"));
            assert!(status.success(), "a worker: {status}\n{}", self.said());
        }
        let in_flight = (0..self.plan.workers).filter(|&number| {
            let ledger = fs::read_to_string(self.plan.ledger(number)).expect("the ledger");
            let mut words = ledger.lines().last().unwrap_or_default().split(' ');
            words.next() == Some("begin")
                && words.next().and_then(|time| time.parse().ok()).is_some_and(|begin: u64| begin < at_ns)
        });
        let in_flight = in_flight.count();
        (self.acknowledged(), in_flight)
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for child in &mut self.children {
            // Of those that nobody waited for.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The processes of every load are this test, too: they are told so.
#[test]
fn a_load_of_processes_is_right_on_the_control() {
    if let Ok(told) = std::env::var(VARIABLE) {
        return work(&told);
    }
    if !harness::can_mount("the control of loads of processes") {
        return;
    }
    let ground = Ground::tmpfs("256M");
    let plan = Plan {
        dir: ground.dir().join("load"),
        ledgers: ground.beside().join("ledgers"),
        workers: 3,
        seed: harness::seed("load of processes"),
        sync: false,
        // A write whose process is killed may stop at any page.
        in_place: true,
    };
    let mut workers = Workers::start(&plan);
    workers.wait_for(1000);
    drop(workers);
    load::check(&plan).expect("the tree is what the ledger says");
}

/// What one process of a load does, until the file system is gone.
fn work(told: &str) {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .expect("a worker ends with its test");
    let told: Value = serde_json::from_str(told).expect("JSON");
    let path = |index: usize| PathBuf::from(told[index].as_str().expect("a path"));
    let number = |index: usize| told[index].as_u64().expect("a number") as usize;
    // From inside it a file system that is gone is still found, wherever its mount point leads meanwhile.
    std::env::set_current_dir(path(1)).expect("the place of the load");
    let plan = Plan {
        dir: ".".into(),
        ledgers: path(2),
        workers: number(3),
        seed: told[4].as_str().and_then(|seed| seed.parse().ok()).expect("a seed"),
        sync: told[5].as_bool().expect("whether to sync"),
        in_place: told[6].as_bool().expect("whether in place"),
    };
    let mut worker = Worker::new(&plan, number(0), Arc::default()).expect("the worker starts");
    let error = worker.run(&AtomicBool::new(false));
    let gone = error.raw_os_error().is_some_and(|code| GONE.contains(&code));
    assert!(gone, "not the error of a file system that is gone: {error}");
}
