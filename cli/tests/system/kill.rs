//! The process that serves a mount is killed under load; what it had acknowledged must be there after the next mount.

use std::thread;
use std::time::{Duration, Instant};

use crate::harness::{self, Ground, PRESETS};
use crate::load::{self, Load, Plan};

/// Kills that one tree lives through. Ledgers are read from their beginning after each.
const TREE_KILLS: u64 = 20;

fn plan(ground: &Ground, tree: u64, seed: u64, sync: bool) -> Plan {
    let ledgers = ground.beside().join(format!("ledgers{tree}"));
    std::fs::create_dir_all(&ledgers).expect("a place for ledgers");
    Plan { dir: ground.dir().join(format!("load{tree}")), ledgers, workers: 3, seed, sync }
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
        wait_for(&load, 1000);
        let (_, errors) = load.stop();
        assert!(errors.is_empty(), "{errors:?}");
        load::check(&plan).expect("the tree is what the ledger says");
    }
}

#[test]
fn a_lost_or_torn_byte_is_found() {
    let dir = harness::scratch();
    let seed = harness::seed("kill, the check itself");
    let ledgers = dir.path().join("ledgers");
    std::fs::create_dir_all(&ledgers).expect("a place for ledgers");
    let plan = Plan { dir: dir.path().join("load"), ledgers, workers: 1, seed, sync: false };
    let load = Load::start(&plan).expect("the load starts");
    wait_for(&load, 200);
    load.stop();
    load::check(&plan).expect("the tree is what the ledger says");
    let files = std::fs::read_dir(plan.dir.join("worker0")).expect("the tree");
    let victim = files
        .map(|entry| entry.expect("an entry").path())
        .find(|path| std::fs::metadata(path).is_ok_and(|found| found.len() > 0))
        .expect("a file that is not empty");
    let mut bytes = std::fs::read(&victim).expect("its bytes");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&victim, &bytes).expect("the damage");
    assert!(load::check(&plan).expect_err("the damage is found").contains("differs from byte"));
    std::fs::remove_file(&victim).expect("the loss");
    assert!(load::check(&plan).expect_err("the loss is found").contains("is missing"));
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
        kill_again_and_again(Ground::preset(preset, "512M", None), rounds);
    }
}

fn kill_again_and_again(mut ground: Ground, rounds: u64) {
    let seed = harness::seed("kill");
    for round in 0..rounds {
        let tree = round / TREE_KILLS;
        if tree > 0 && round % TREE_KILLS == 0 {
            std::fs::remove_dir_all(ground.dir().join(format!("load{}", tree - 1))).expect("the tree before");
        }
        let plan = plan(&ground, tree, seed.wrapping_add(round), round % 2 == 0);
        let load = Load::start(&plan).expect("the load starts");
        // The kill comes at another point of the load each time.
        wait_for(&load, 100 + (seed.rotate_left(round as u32 * 7) % 900));
        ground.kill();
        let (_, errors) = load.stop();
        // A worker between two operations may be told to stop before it notices.
        let gone = [libc::ENOTCONN, libc::ECONNABORTED, libc::EIO];
        let other =
            errors.iter().find(|error| !error.raw_os_error().is_some_and(|code| gone.contains(&code)));
        assert!(other.is_none(), "not the error of a file system that is gone: {other:?}");
        ground.mount();
        match load::check(&plan) {
            Ok(checked) => println!("{}, kill {}: {checked:?}", ground.name(), round + 1),
            Err(text) => panic!("{}, after kill {} (NACRE_SEED={seed}):\n{text}", ground.name(), round + 1),
        }
    }
    ground.unmount();
    ground.fsck();
}
