//! Workloads on devices with several volumes, which are made, used in turn and removed.

use nacre_engine::RenameMode;

use super::op::Op;
use super::randomly::random;
use super::workload::{Workload, dir, file, workload};

/// Random workloads, in which volumes come, go and take turns.
const RANDOM: u64 = 8;
/// Operations of each of these on files.
const OPERATIONS: usize = 10;
/// Blocks of the quota of a small volume.
const FEW: u64 = 400;
const BLOCK: usize = 4096;

/// All of them.
pub fn with_volumes() -> Vec<Workload> {
    let mut all = made();
    all.extend(removed());
    all.extend([in_turn(), full(), remade()]);
    all.extend((0..RANDOM).map(random_with_volumes));
    all
}

/// The files of the first volume.
fn base() -> Vec<Op> {
    vec![dir("d"), file("d/a"), Op::Write("d/a", 0, 9000), file("b")]
}

/// A second volume with one of each kind of metadata. The first volume is in use afterwards.
fn mail() -> Vec<Op> {
    vec![
        Op::MakeVolume("mail", 0),
        Op::UseVolume("mail"),
        dir("d"),
        file("d/a"),
        Op::Write("d/a", 0, 30_000),
        Op::Write("d/a", 80_000, 100),
        Op::Symlink("s", "d/a"),
        Op::SetXattr("d/a", "user.x", 3000),
        Op::Link("d/a", "a2"),
        Op::UseVolume("main"),
    ]
}

fn named(name: &str, setup: &[&[Op]], ops: &[Op]) -> Workload {
    workload(name, &setup.concat(), ops)
}

fn made() -> Vec<Workload> {
    let make = Op::MakeVolume("mail", 0);
    vec![
        named("volume-made", &[&base()], std::slice::from_ref(&make)),
        named("volume-of-few-blocks-made", &[&base()], &[Op::MakeVolume("small", FEW)]),
        named(
            "volume-made-and-used",
            &[&base()],
            &[
                make.clone(),
                Op::Append("d/a", 5000),
                Op::UseVolume("mail"),
                file("a"),
                Op::Append("a", 5000),
                Op::UseVolume("main"),
                Op::Unlink("d/a"),
            ],
        ),
        // Its name is taken, or its row was another one's.
        named(
            "volume-made-again",
            &[&base(), &mail()],
            &[make.clone(), Op::RemoveVolume("mail"), make, Op::UseVolume("mail"), file("a"), Op::Remount],
        ),
    ]
}

fn removed() -> Vec<Workload> {
    let remove = Op::RemoveVolume("mail");
    let large = [
        Op::UseVolume("mail"),
        file("large"),
        Op::Append("large", 600 * BLOCK),
        file("more"),
        Op::Append("more", 300 * BLOCK),
        Op::UseVolume("main"),
    ];
    // The inode of an unmount that found it without a name is freed by it; what is held at a crash is not.
    let held = [Op::UseVolume("mail"), Op::Hold("d/a"), Op::Unlink("a2"), Op::Unlink("d/a")];
    vec![
        named("volume-removed", &[&base(), &mail()], std::slice::from_ref(&remove)),
        named(
            "large-volume-removed",
            &[&base(), &mail(), &large],
            &[remove.clone(), file("new"), Op::Append("new", 100 * BLOCK)],
        ),
        named(
            "volume-removed-after-use",
            &[&base(), &mail()],
            &[&held[..], &[Op::UseVolume("main"), remove.clone(), Op::Append("b", 20_000)]].concat(),
        ),
        named(
            "one-of-two-volumes-removed",
            &[&base(), &mail(), &[Op::MakeVolume("small", FEW), Op::UseVolume("small"), file("a")]],
            &[remove, Op::Append("a", 9000), Op::UseVolume("main"), Op::RemoveVolume("small")],
        ),
    ]
}

/// Operations go to one volume and to the other.
fn in_turn() -> Workload {
    let ops = [
        Op::UseVolume("mail"),
        Op::Append("d/a", 3000),
        Op::Rename("d/a", "d/b", RenameMode::Replace),
        Op::UseVolume("main"),
        Op::Unlink("b"),
        Op::Truncate("d/a", 100),
        Op::UseVolume("mail"),
        Op::Unlink("d/b"),
        Op::Write("a2", 0, 8192),
    ];
    named("volumes-in-turn", &[&base(), &mail()], &ops)
}

/// A volume is as full as its quota lets it be, and the other one is not.
fn full() -> Workload {
    let ops = [
        Op::Append("a", 200 * BLOCK),
        Op::Append("a", 200 * BLOCK),
        Op::Append("a", 50 * BLOCK),
        Op::Write("a", 0, 9000),
        Op::UseVolume("main"),
        Op::Append("b", 9000),
        Op::RemoveVolume("small"),
    ];
    let setup = [Op::MakeVolume("small", FEW), Op::UseVolume("small"), file("a")];
    Workload { fills: true, ..named("volume-at-its-quota", &[&base(), &setup], &ops) }
}

/// A new file system has none of the old volumes, and can have one of the same name.
fn remade() -> Workload {
    named(
        "mkfs-over-volumes",
        &[&base(), &mail()],
        &[Op::Mkfs, file("new"), Op::MakeVolume("mail", 0), Op::UseVolume("mail"), file("a")],
    )
}

/// After every second operation on files there is one on volumes. Some of these fail, as they must.
fn random_with_volumes(seed: u64) -> Workload {
    let of_files = random(seed, OPERATIONS);
    let of_volumes = [
        Op::UseVolume("mail"),
        Op::UseVolume("main"),
        Op::RemoveVolume("mail"),
        Op::MakeVolume("mail", 0),
        Op::UseVolume("mail"),
    ];
    let ops = of_files.ops.iter().enumerate().flat_map(|(index, op)| {
        let next = (index as u64 / 2 + seed) % of_volumes.len() as u64;
        let of_volumes = (index % 2 == 1).then(|| of_volumes[next as usize].clone());
        [op.clone()].into_iter().chain(of_volumes)
    });
    let setup = [of_files.setup.clone(), vec![Op::MakeVolume("mail", 0)]].concat();
    workload(&format!("volumes-and-random-{seed}"), &setup, &ops.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::with_volumes;
    use crate::crash::explore::MEMORY;
    use crate::crash::{Flaw, PoolVolumes, Rig};

    /// Or else nothing of what they are named for happens.
    #[test]
    fn each_can_be_run_and_changes_something() {
        let mut rig = Rig::new(&PoolVolumes, MEMORY);
        for workload in with_volumes() {
            let recording =
                rig.record(&workload, Flaw::None).unwrap_or_else(|e| panic!("{}: {e}", workload.name));
            assert_eq!(recording.live_differences, Vec::<String>::new(), "{}", workload.name);
            assert_eq!(recording.states.len(), workload.ops.len() + 1);
            let differs = recording.states.windows(2).any(|pair| pair[0] != pair[1]);
            assert!(differs && recording.trace.fences() > 10, "{}", workload.name);
        }
    }
}
