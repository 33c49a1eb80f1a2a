//! Blocks that a program holds where they are, while others write.

use std::sync::atomic::{AtomicBool, Ordering};

use nacre_cache::Settings;
use nacre_engine::{Data, Durability, Extents, FileBlock, Kind, WriteAt};
use nacre_policy::Checker;

use crate::{BLOCK, without_threads, world_with};

#[test]
fn what_was_accepted_beside_a_pin_can_be_written() {
    const BLOCKS: u64 = 8;
    let world = world_with(64, Settings { checker: Checker::Off, ..without_threads() });
    let file = world.create("file");
    world.put_now(&file, 0, &[0; BLOCKS as usize * BLOCK]);
    let done = AtomicBool::new(false);
    let (synced, counts) = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..2u64)
            .map(|writer| {
                let (world, file, done) = (&world, file.clone(), &done);
                scope.spawn(move || {
                    let (mut accepted, mut last) = (0, vec![0; BLOCKS as usize]);
                    for turn in (1..=u8::MAX).cycle() {
                        let block = u64::from(turn) * 2 % BLOCKS + writer;
                        let at = WriteAt::Offset(block * BLOCK as u64 + 100);
                        match world.write(&file, at, &[turn; 100], Durability::Lazy) {
                            Ok(_) => {
                                accepted += 1;
                                last[block as usize] = turn;
                            }
                            Err(error) => assert_eq!(error.kind(), Kind::Busy),
                        }
                        if done.load(Ordering::Acquire) {
                            break;
                        }
                    }
                    (accepted, last)
                })
            })
            .collect();
        let turn = || {
            // Time for writes to begin that see no pin.
            let before = world.fs.status().written_lazily;
            (0..100_000).find(|_| world.fs.status().written_lazily > before + 200);
            // It writes what waits itself.
            world.fs.pin(&file, FileBlock(0), BLOCKS)?;
            let synced = world.fs.sync(&file);
            world.fs.unpin(&file);
            synced
        };
        let synced = (0..2000).try_for_each(|_| turn());
        done.store(true, Ordering::Release);
        (synced, writers.into_iter().map(|writer| writer.join().unwrap()).collect::<Vec<_>>())
    });
    synced.expect("nothing comes to wait for media behind a pin");
    world.fs.sync(&file).unwrap();
    assert!(counts.iter().all(|(accepted, _)| *accepted > 0));
    let bytes = world.bytes_on_media("file").unwrap();
    for block in 0..BLOCKS as usize {
        let expected = counts[block % 2].1[block];
        assert_eq!(bytes[block * BLOCK + 100..][..100], [expected; 100], "block {block}");
    }
    assert_eq!((world.fs.status().used, world.fs.status().failures, world.fs.status().lost), (0, 0, 0));
    world.unmount();
}
