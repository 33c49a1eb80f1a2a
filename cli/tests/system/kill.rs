//! The process that serves a mount is killed under load; what it had acknowledged must be there after the next mount.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::fs::XattrFlags;

use crate::harness::{self, Ground, Kind, PRESETS};
use crate::load::{self, Load, Plan};
use crate::workers::Workers;

/// Kills that one tree lives through. Ledgers are read from their beginning after each.
const TREE_KILLS: u64 = 20;

/// What a mixed load does.
const KINDS: [&str; 15] = [
    "append",
    "overwrite",
    "truncate",
    "punch",
    "setxattr",
    "removexattr",
    "fsync",
    "replace",
    "rename",
    "exchange",
    "link",
    "symlink",
    "mkdir",
    "rmdir",
    "unlink",
];

fn plan(ground: &Ground, tree: u64, seed: u64, sync: bool) -> Plan {
    let ledgers = ground.beside().join(format!("ledgers{tree}"));
    fs::create_dir_all(&ledgers).expect("a place for ledgers");
    let dir = ground.dir().join(format!("load{tree}"));
    Plan { dir, ledgers, workers: 3, seed, sync, in_place: ground.overwrites_in_place() }
}

/// Waits until the load has done `operations`, at most a minute.
fn wait_for(load: &Load, operations: u64) {
    let end = Instant::now() + Duration::from_secs(60);
    while load.acknowledged() < operations {
        assert!(Instant::now() < end, "only {} operations in a minute", load.acknowledged());
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn the_load_is_right_on_the_control() {
    if !harness::can_mount("the control of kill -9") {
        return;
    }
    let ground = Ground::tmpfs("256M");
    let seed = harness::seed("kill, control");
    for sync in [true, false] {
        let plan = plan(&ground, 0, seed, sync);
        let load = Load::start(&plan).expect("the load starts");
        wait_for(&load, 2000);
        let (_, errors) = load.stop();
        assert!(errors.is_empty(), "{errors:?}");
        load::check(&plan).expect("the tree is what the ledger says");
        let ledgers: String = (0..plan.workers)
            .map(|worker| fs::read_to_string(plan.ledger(worker)).expect("a ledger"))
            .collect();
        for kind in KINDS {
            assert!(ledgers.contains(&format!(" {kind} ")), "no {kind} among the operations");
        }
    }
}

#[test]
fn a_lost_or_torn_byte_is_found() {
    let dir = harness::scratch();
    let seed = harness::seed("kill, the check itself");
    let ledgers = dir.path().join("ledgers");
    fs::create_dir_all(&ledgers).expect("a place for ledgers");
    let plan = Plan { dir: dir.path().join("load"), ledgers, workers: 1, seed, sync: false, in_place: false };
    let load = Load::start(&plan).expect("the load starts");
    wait_for(&load, 200);
    load.stop();
    load::check(&plan).expect("the tree is what the ledger says");
    let top = plan.dir.join("worker0");
    let victim = fs::read_dir(&top)
        .expect("the tree")
        .map(|entry| entry.expect("an entry").path())
        .find(|path| fs::symlink_metadata(path).is_ok_and(|found| found.is_file() && found.len() > 0))
        .expect("a file that is not empty");
    let finds = |what: &str| {
        let words = load::check(&plan).expect_err(what);
        assert!(words.contains(what), "{what}: {words}");
    };
    let whole = fs::read(&victim).expect("its bytes");
    let mut bytes = whole.clone();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&victim, &bytes).expect("the damage");
    finds("differs from byte");
    fs::write(&victim, &whole[..middle]).expect("the damage");
    finds("differs from byte");
    fs::write(&victim, &whole).expect("it is whole again");
    rustix::fs::setxattr(&victim, "user.other", b"value", XattrFlags::empty()).expect("an attribute");
    finds("has other attributes");
    rustix::fs::removexattr(&victim, "user.other").expect("it is as before");
    fs::create_dir(top.join("other")).expect("a directory");
    finds("other is too much");
    fs::remove_dir(top.join("other")).expect("it is as before");
    fs::hard_link(&victim, dir.path().join("other")).expect("a link");
    finds("links");
    fs::remove_file(dir.path().join("other")).expect("it is as before");
    load::check(&plan).expect("the tree is what the ledger says");
    fs::remove_file(&victim).expect("the loss");
    finds("is missing");
}

/// Every second round acknowledges only after fsync; in the others the return of a call must be enough, which is what
/// a mount without a write cache promises.
#[test]
fn what_was_acknowledged_survives_kill_9() {
    if !harness::can_mount("kill -9") {
        return;
    }
    let rounds = harness::number("NACRE_KILLS", 5);
    for preset in PRESETS {
        kill_again_and_again(Ground::preset(preset, "512M", None), &Kills { rounds, ..Kills::default() });
    }
}

/// A mount with our write buffer acknowledges with fsync only; of what was not synchronised it loses what it buffered.
#[test]
fn what_was_synchronised_survives_kill_9_of_a_lazy_mount() {
    if !harness::can_mount("kill -9 of a lazy mount") {
        return;
    }
    for ground in Ground::lazy("512M", 3) {
        let rounds = harness::number("NACRE_KILLS", 5);
        // Over a tier its files move meanwhile, too.
        let kills = Kills { rounds, moves: ground.has_tier(), evicts: false, always_syncs: true };
        kill_again_and_again(ground, &kills);
    }
}

/// The same while all files move down to a tier and up again, as fast as that goes.
#[test]
fn what_was_acknowledged_survives_kill_9_while_it_moves() {
    if !harness::can_mount("kill -9 while files move") {
        return;
    }
    let ground = Ground::preset(PRESETS[0], "512M", None);
    // Where a mount looks for it.
    let disk = ground.image().parent().expect("a directory").join("disk");
    let mut command = harness::nacre();
    command.args(["tier", "add", "--size", "512M"]).arg(ground.dir()).arg(disk);
    harness::succeed(&mut command, Duration::from_secs(60));
    let kills = Kills { rounds: harness::number("NACRE_KILLS", 5), moves: true, ..Kills::default() };
    kill_again_and_again(ground, &kills);
}

/// The same with anti-caching, whose threshold is far below what the load has: blocks are evicted and come up all the time.
#[test]
fn what_was_acknowledged_survives_kill_9_while_blocks_are_evicted() {
    if !harness::can_mount("kill -9 while blocks are evicted") {
        return;
    }
    let kind = Kind { preset: "acbpfs", options: "anticache=128K", tier: Some("512M") };
    let kills = Kills { rounds: harness::number("NACRE_KILLS", 5), evicts: true, ..Kills::default() };
    kill_again_and_again(Ground::of(kind, "512M"), &kills);
}

/// Waits until anti-caching has evicted blocks since the mount, at most a minute; gives how many bytes.
fn wait_for_evictions(ground: &Ground) -> u64 {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let mut command = harness::nacre();
        command.args(["mover", "status", "--json"]).arg(ground.dir());
        let output = harness::run(&mut command, Duration::from_secs(60)).expect("it ends");
        let status: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        match status["evicted"].as_u64().expect("a number of bytes") {
            0 => assert!(Instant::now() < end, "{}: nothing is evicted: {status}", ground.name()),
            bytes => return bytes,
        }
    }
}

/// Somebody who moves all files down and up.
struct Unrest {
    ends: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

impl Unrest {
    fn start(dir: &Path) -> Unrest {
        let ends = Arc::new(AtomicBool::new(false));
        let (dir, told) = (dir.to_owned(), Arc::clone(&ends));
        let thread = thread::spawn(move || {
            let mut moves = 0;
            while !told.load(Ordering::Relaxed) {
                for word in ["demote", "promote"] {
                    // It may meet what was just removed or is not mounted any more, and says so.
                    let mut command = harness::nacre();
                    command.args([word, "-r", "--json"]).arg(&dir);
                    let output = harness::run(&mut command, Duration::from_secs(60)).expect("it ends");
                    moves += u64::from(output.status.success());
                }
            }
            moves
        });
        Unrest { ends, thread }
    }

    /// How often all files were moved.
    fn stop(self) -> u64 {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.join().expect("it does not panic")
    }
}

/// How a file system is killed.
#[derive(Debug, Default)]
struct Kills {
    rounds: u64,
    /// All files move down to a tier and up meanwhile.
    moves: bool,
    /// Anti-caching evicts blocks.
    evicts: bool,
    /// Nothing is acknowledged before fsync, in no round.
    always_syncs: bool,
}

fn kill_again_and_again(mut ground: Ground, kills: &Kills) {
    let Kills { rounds, moves, evicts, always_syncs } = *kills;
    let seed = harness::seed("kill");
    let (mut in_the_middle, mut moved, mut evicted_bytes) = (0, 0, 0);
    for round in 0..rounds {
        let tree = round / TREE_KILLS;
        if tree > 0 && round % TREE_KILLS == 0 {
            fs::remove_dir_all(ground.dir().join(format!("load{}", tree - 1))).expect("the tree before");
        }
        let plan = plan(&ground, tree, seed.wrapping_add(round), always_syncs || round % 2 == 0);
        let unrest = moves.then(|| Unrest::start(&plan.dir));
        let mut workers = Workers::start(&plan);
        // The kill comes at another point of the load each time.
        workers.wait_for(100 + (seed.rotate_left(round as u32 * 7) % 900));
        if evicts {
            evicted_bytes += wait_for_evictions(&ground);
        }
        let killed_ns = load::now_ns();
        ground.kill();
        let (acknowledged, in_flight) = workers.end(killed_ns);
        moved += unrest.map_or(0, Unrest::stop);
        in_the_middle += u64::from(in_flight > 0);
        ground.mount();
        match load::check(&plan) {
            Ok(checked) => println!(
                "{}, kill {}: {acknowledged} acknowledged, {in_flight} in flight, {checked:?}",
                ground.name(),
                round + 1
            ),
            Err(text) => panic!("{}, after kill {} (NACRE_SEED={seed}):\n{text}", ground.name(), round + 1),
        }
    }
    // Workers are between two operations for moments only. If this fails, the kills meet an idle mount.
    assert!(in_the_middle > 0, "{}: none of {rounds} kills met an operation in flight", ground.name());
    if moves {
        println!("all files were moved {moved} times");
    }
    assert!(!moves || moved > 0, "{}: nothing was moved", ground.name());
    if evicts {
        println!("{} KiB were evicted", evicted_bytes >> 10);
    }
    ground.unmount();
    ground.fsck();
}
