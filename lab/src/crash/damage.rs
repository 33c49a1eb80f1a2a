//! Workloads on damaged metadata, for layouts that have it twice: operations find the damage, mend it, and go on.
//!
//! A crash must find one whole copy of everything. So the damaged one is written anew, durably, before an operation
//! touches the other.

use nacre_engine::RenameMode;

use super::op::{Op, Twin};
use super::workload::{Workload, dir, file, workload};

/// Inodes of [`base`], the root's included.
const INODES: u64 = 4;
/// Places for names that its two directories have.
const PLACES: u64 = 32;
const BLOCK: u64 = 4096;

/// All of them. The damage is found before the operation that changes the same words, or while it is prepared.
pub fn with_damage() -> Vec<Workload> {
    let primary = |kind, count| damaged(kind, 0..count, Twin::Primary);
    let backup = |kind, count| damaged(kind, 0..count, Twin::Backup);
    let of = |name: &str, damage: &[Op], ops: &[Op]| workload(name, &[&base(), damage].concat(), ops);
    let of_one = damaged("inode", 2..3, Twin::Primary);
    let everywhere = |twin| {
        let all = [("inode", INODES), ("name", PLACES), ("node", 1), ("bytes", 1)];
        all.into_iter().flat_map(|(kind, count)| damaged(kind, 0..count, twin)).collect::<Vec<_>>()
    };
    let busy = [
        Op::Read("d/a"),
        Op::Write("d/a", BLOCK, 4096),
        Op::SetXattr("d/a", "user.y", 100),
        Op::Rename("d/a", "c", RenameMode::Replace),
        file("d/new"),
        Op::Remount,
        Op::Unlink("c"),
    ];
    vec![
        of("mended-inode", &of_one, &[Op::SetAttr("d/a", 0o600)]),
        of("mended-inode-of-an-append", &of_one, &[Op::Append("d/a", 5000)]),
        of("mended-inodes", &primary("inode", INODES), &[Op::SetAttr("d/a", 0o600), Op::Link("d/a", "l")]),
        of("mended-names", &primary("name", PLACES), &[Op::Sync("d/a"), Op::Unlink("d/a"), file("d/n")]),
        of("mended-node", &primary("node", 1), &[Op::Read("d/a"), Op::Write("d/a", BLOCK, 4096)]),
        of("mended-attributes", &primary("bytes", 1), &[Op::Read("d/a"), Op::SetXattr("d/a", "user.y", 90)]),
        of("mended-bits", &primary("bits", 2), &[file("d/n"), Op::Write("d/n", 0, 100)]),
        of("mended-maps", &primary("map", 4), &[file("d/n"), Op::Write("b", 0, 9000), Op::Unlink("b")]),
        of("mended-row", &primary("row", 1), &[Op::Remount, file("d/n")]),
        of("mended-everything", &everywhere(Twin::Primary), &busy),
        of("damaged-backups", &everywhere(Twin::Backup), &busy),
        of("damaged-backup-of-an-inode", &backup("inode", INODES), &[Op::SetAttr("d/a", 0o600)]),
    ]
}

/// A file with holes, so that its map has a node, and with attributes.
fn base() -> Vec<Op> {
    let mut ops = vec![dir("d"), file("d/a"), file("b")];
    ops.extend((0..6).map(|index| Op::Write("d/a", index * 2 * BLOCK, 100)));
    ops.push(Op::SetXattr("d/a", "user.x", 3000));
    ops
}

fn damaged(kind: &'static str, numbers: std::ops::Range<u64>, twin: Twin) -> Vec<Op> {
    numbers.map(|number| Op::Damage(kind, number, twin)).collect()
}

#[cfg(test)]
mod tests {
    use nacre_media::sim::Event;

    use super::with_damage;
    use crate::crash::explore::MEMORY;
    use crate::crash::{Flaw, Pool, Rig};

    /// Or else no crash comes while something is mended.
    #[test]
    fn damaged_primaries_are_mended() {
        let mut rig = Rig::new(&Pool, MEMORY);
        for workload in with_damage() {
            let name = &workload.name;
            let recording =
                rig.record(&workload, Flaw::None).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(recording.live_differences, Vec::<String>::new(), "{name}");
            let mends = |event: &Event| match event {
                Event::Store { site, .. } => site.file().ends_with("pool/src/mend.rs"),
                _ => false,
            };
            let mended = recording.trace.events.iter().filter(|event| mends(event)).count();
            assert_eq!(mended > 0, name.starts_with("mended"), "{name}: {mended} lines");
        }
    }
}
