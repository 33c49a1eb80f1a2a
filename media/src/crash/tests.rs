//! The crash model, case by case, with the images it allows written out.

use std::collections::BTreeSet;

use super::{Replay, Sampling};
use crate::image::Image;
use crate::pm::Pm;
use crate::sim::{Defect, Event, SimPm, Site, Trace};

const LEN: u64 = 8192;

fn record(run: impl FnOnce(&SimPm)) -> Trace {
    record_with(None, run)
}

fn record_with(defect: Option<Defect>, run: impl FnOnce(&SimPm)) -> Trace {
    let pm = SimPm::new(LEN);
    pm.start_recording_with(defect);
    run(&pm);
    pm.stop_recording()
}

/// All images of the last point, as the words at these offsets.
fn final_words<const N: usize>(trace: &Trace, offsets: [usize; N]) -> BTreeSet<[u64; N]> {
    let mut replay = Replay::new(Image::zeros(LEN), trace);
    while replay.advance().is_some_and(|point| !point.is_end) {}
    words_here(&replay, offsets)
}

fn words_here<const N: usize>(replay: &Replay<'_>, offsets: [usize; N]) -> BTreeSet<[u64; N]> {
    let images = replay.images(&Sampling::default());
    assert!(images.is_exhaustive());
    let all: BTreeSet<[u64; N]> = images
        .iter()
        .map(|image| {
            let media = replay.crashed(&image).to_vec();
            offsets.map(|at| u64::from_le_bytes(media[at..at + 8].try_into().unwrap()))
        })
        .collect();
    all
}

fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn stores_to_a_line_land_in_order() {
    let trace = record(|pm| {
        pm.store(0, &1u64.to_le_bytes()).unwrap().may_be_lost();
        pm.store(8, &2u64.to_le_bytes()).unwrap().may_be_lost();
        pm.store(0, &3u64.to_le_bytes()).unwrap().may_be_lost();
    });
    assert_eq!(final_words(&trace, [0, 8]), BTreeSet::from([[0, 0], [1, 0], [1, 2], [3, 2]]));
}

#[test]
fn lines_land_independently() {
    let trace = record(|pm| {
        let one = pm.flush(pm.store(0, &1u64.to_le_bytes()).unwrap());
        let two = pm.flush(pm.store(64, &2u64.to_le_bytes()).unwrap());
        one.and(two).may_be_lost();
    });
    assert_eq!(final_words(&trace, [0, 64]), BTreeSet::from([[0, 0], [1, 0], [0, 2], [1, 2]]));
}

#[test]
fn non_temporal_words_land_in_any_combination() {
    let trace = record(|pm| pm.copy(64, &bytes(&[1, 2, 3])).unwrap().may_be_lost());
    assert_eq!(final_words(&trace, [64, 72, 80]).len(), 8);
}

#[test]
fn parts_of_words_at_the_edges_are_ordinary_stores() {
    let trace = record(|pm| pm.copy(6, &[1; 12]).unwrap().may_be_lost());
    // Bytes 6 and 7 before bytes 16 and 17 (ordinary stores of one line), the word between at will.
    let seen = final_words(&trace, [0, 8, 16]);
    assert_eq!(seen.len(), 6);
    assert!(!seen.contains(&[0, 0, 0x0101]) && seen.contains(&[0x0101 << 48, 0, 0x0101]));
}

#[test]
fn a_fence_makes_durable_what_was_flushed_and_nothing_else() {
    let trace = record(|pm| {
        pm.store(0, &1u64.to_le_bytes()).unwrap().may_be_lost();
        let flushed = pm.flush(pm.store(64, &2u64.to_le_bytes()).unwrap());
        pm.store(64, &5u64.to_le_bytes()).unwrap().may_be_lost();
        let copied = pm.copy(128, &bytes(&[3, 4])).unwrap();
        pm.fence(flushed.and(copied));
    });
    let seen = final_words(&trace, [0, 64, 128, 136]);
    assert_eq!(seen, BTreeSet::from([[0, 2, 3, 4], [1, 2, 3, 4], [0, 5, 3, 4], [1, 5, 3, 4]]));
}

#[test]
fn a_fence_is_for_its_own_thread() {
    let trace = record(|pm| {
        std::thread::scope(|scope| {
            scope.spawn(|| pm.copy(0, &bytes(&[1])).unwrap().may_be_lost());
        });
        pm.fence(pm.copy(64, &bytes(&[2])).unwrap());
    });
    assert_eq!(final_words(&trace, [0, 64]), BTreeSet::from([[0, 2], [1, 2]]));
}

#[test]
fn a_durable_store_hides_older_ones() {
    let trace = record(|pm| {
        std::thread::scope(|scope| {
            scope.spawn(|| pm.copy(0, &bytes(&[1])).unwrap().may_be_lost());
        });
        pm.fence(pm.flush(pm.store(0, &[7, 7]).unwrap()));
    });
    // The older word may still land, except for the two bytes that are durable.
    assert_eq!(final_words(&trace, [0]), BTreeSet::from([[0x0707]]));
    let trace = record(|pm| {
        std::thread::scope(|scope| {
            scope.spawn(|| pm.copy(0, &[1; 8]).unwrap().may_be_lost());
        });
        pm.fence(pm.flush(pm.store(0, &[7, 7]).unwrap()));
    });
    assert_eq!(final_words(&trace, [0]), BTreeSet::from([[0x0707], [0x0101_0101_0101_0707]]));
}

#[test]
fn points_are_before_fences_and_at_the_end() {
    let trace = record(|pm| {
        pm.fence(pm.copy(0, &bytes(&[1])).unwrap());
        pm.mark(10);
        pm.fence(pm.copy(8, &bytes(&[2])).unwrap());
        pm.mark(11);
    });
    let mut replay = Replay::new(Image::zeros(LEN), &trace);
    let first = replay.advance().unwrap();
    assert_eq!((first.index, first.marks, first.is_end), (0, 0, false));
    assert_eq!(words_here(&replay, [0, 8]), BTreeSet::from([[0, 0], [1, 0]]));
    let second = replay.advance().unwrap();
    assert_eq!((second.marks, second.last_mark, second.is_end), (1, Some(10), false));
    assert_eq!(words_here(&replay, [0, 8]), BTreeSet::from([[1, 0], [1, 2]]));
    let last = replay.advance().unwrap();
    assert_eq!((last.marks, last.last_mark, last.is_end), (2, Some(11), true));
    assert_eq!(words_here(&replay, [0, 8]), BTreeSet::from([[1, 2]]));
    assert_eq!(replay.pending_lines(), 0);
    assert_eq!(replay.advance(), None);
}

#[test]
fn a_trace_in_two_pieces_leaves_what_it_leaves_in_one() {
    let pm = SimPm::new(LEN);
    pm.start_recording();
    let copied = pm.copy(0, &bytes(&[1])).unwrap();
    pm.store(64, &2u64.to_le_bytes()).unwrap().may_be_lost();
    let first = pm.take_trace();
    pm.fence(copied);
    pm.store(64, &3u64.to_le_bytes()).unwrap().may_be_lost();
    let second = pm.stop_recording();
    let mut replay = Replay::new(Image::zeros(LEN), &first).then(&second);
    assert!(replay.advance().is_some_and(|point| !point.is_end && point.index == 0));
    assert_eq!(words_here(&replay, [0, 64]), BTreeSet::from([[0, 0], [0, 2], [1, 0], [1, 2]]));
    assert!(replay.advance().is_some_and(|point| point.is_end));
    assert_eq!(words_here(&replay, [0, 64]), BTreeSet::from([[1, 0], [1, 2], [1, 3]]));
}

/// Publishes a value behind a pointer, as every commit does, and counts the images in which the pointer leads to
/// nothing, and those in which it was lost although it was acknowledged.
fn broken_images(defect: Option<Defect>) -> (usize, usize) {
    let trace = record_with(defect, |pm| {
        let data = pm.copy(4096, &[9; 64]).unwrap();
        let durable = pm.fence(data);
        let pointer = pm.publish_u64(0, 4096, durable).unwrap();
        pm.fence(pm.flush(pointer));
        pm.mark(1);
    });
    let mut replay = Replay::new(Image::zeros(LEN), &trace);
    let (mut dangling, mut lost) = (0, 0);
    while let Some(point) = replay.advance() {
        for image in replay.images(&Sampling::default()).iter() {
            let media = replay.crashed(&image).to_vec();
            let pointer = u64::from_le_bytes(media[..8].try_into().unwrap());
            dangling += usize::from(pointer == 4096 && media[4096..4160] != [9; 64]);
            lost += usize::from(pointer != 4096 && point.marks == 1);
        }
    }
    (dangling, lost)
}

#[test]
fn a_correct_commit_has_no_broken_image_and_every_defect_shows() {
    assert_eq!(broken_images(None), (0, 0));
    assert_eq!(broken_images(Some(Defect::SkipFlush(0))).1, 0);
    assert!(broken_images(Some(Defect::SkipFlush(0))).0 > 0, "data that was not flushed");
    assert!(broken_images(Some(Defect::SkipFence(0))).0 > 0, "data that was not fenced");
    assert!(broken_images(Some(Defect::SkipFlush(1))).1 > 0, "a pointer that was not flushed");
    assert!(broken_images(Some(Defect::SkipFence(1))).1 > 0, "a pointer that was not fenced");
    assert!(broken_images(Some(Defect::NoFences)).0 > 0);
}

#[test]
fn many_images_are_sampled_the_same_way_for_the_same_seed() {
    let trace = record(|pm| pm.copy(0, &[0xAB; 4096]).unwrap().may_be_lost());
    let mut replay = Replay::new(Image::zeros(LEN), &trace);
    replay.advance().unwrap();
    let sampling = Sampling { samples: 500, seed: 3, ..Sampling::default() };
    let images = replay.images(&sampling);
    assert!(!images.is_exhaustive());
    let all: Vec<_> = images.iter().collect();
    assert_eq!(all, replay.images(&sampling).iter().collect::<Vec<_>>());
    assert_ne!(all, replay.images(&Sampling { seed: 4, ..sampling }).iter().collect::<Vec<_>>());
    assert!(all.iter().any(|image| image.lines.is_empty()));
    assert!(
        all.iter().any(|image| image.lines.len() == 64 && image.lines.iter().all(|(_, l)| *l == [0xAB; 64]))
    );
    for line in 0..64 {
        assert!(all.iter().any(|image| image.lines == [(line, [0xAB; 64])]), "line {line} alone");
        let without = |image: &super::CrashImage| {
            image.lines.len() == 63 && image.lines.iter().all(|(l, bytes)| *l != line && *bytes == [0xAB; 64])
        };
        assert!(all.iter().any(without), "all but line {line}");
    }
    assert!(
        all.iter().any(|image| image.lines.iter().any(|(_, l)| l[..32] == [0xAB; 32] && l[32..] == [0; 32]))
    );
}

#[test]
fn an_image_can_be_tried_and_taken_back() {
    let trace = record(|pm| pm.copy(4000, &[5; 200]).unwrap().may_be_lost());
    let mut replay = Replay::new(Image::zeros(LEN), &trace);
    replay.advance().unwrap();
    let pm = SimPm::new(LEN);
    pm.load(replay.media());
    for image in replay.images(&Sampling::default()).iter() {
        image.apply(&pm);
        pm.store(8000, b"recovery writes, too").unwrap().may_be_lost();
        assert_ne!(Image::from(pm.snapshot()), *replay.media());
        pm.load(replay.media());
        assert_eq!(Image::from(pm.snapshot()), *replay.media());
    }
}

#[test]
fn what_is_allowed_can_be_asked() {
    let trace = record(|pm| pm.copy(64, &bytes(&[1, 2])).unwrap().may_be_lost());
    let mut replay = Replay::new(Image::zeros(LEN), &trace);
    replay.advance().unwrap();
    let line = |words: &[u64]| -> [u8; 64] {
        let mut line = [0; 64];
        line[..words.len() * 8].copy_from_slice(&bytes(words));
        line
    };
    for good in [&[0, 0], &[1, 0], &[0, 2], &[1, 2]] {
        assert!(replay.allows(1, &line(good)));
    }
    assert!(!replay.allows(1, &line(&[2, 0])) && !replay.allows(1, &line(&[1, 2, 3])));
    assert!(replay.allows(0, &[0; 64]) && !replay.allows(0, &line(&[1])));
    // Twenty words: too many combinations to try all.
    let trace = record(|pm| (1..20).for_each(|i| pm.copy(0, &bytes(&[i, i, i])).unwrap().may_be_lost()));
    let mut replay = Replay::new(Image::zeros(LEN), &trace);
    replay.advance().unwrap();
    assert!(replay.allows(0, &line(&[3, 19, 0])) && !replay.allows(0, &line(&[20, 0, 0])));
}

#[test]
fn equal_images_have_equal_hashes() {
    let trace = record(|pm| {
        pm.fence(pm.copy(0, &bytes(&[1, 2])).unwrap());
        pm.fence(pm.copy(64, &bytes(&[3])).unwrap());
        pm.fence(pm.copy(0, &bytes(&[0, 0])).unwrap());
        pm.fence(pm.copy(64, &bytes(&[0])).unwrap());
    });
    let mut by_hash = std::collections::HashMap::new();
    let mut replay = Replay::new(Image::zeros(LEN), &trace);
    while replay.advance().is_some() {
        for image in replay.images(&Sampling::default()).iter() {
            let media = replay.crashed(&image);
            let seen = by_hash.entry(replay.hash_of(&image)).or_insert_with(|| media.clone());
            assert_eq!(*seen, media);
        }
    }
    // What the two lines may hold: any part of (1, 2) with nothing in the second, or with the second filled (1, 2).
    assert_eq!(by_hash.len(), 8);
}

#[test]
fn a_site_without_flush_or_fence_is_one_line_of_the_program() {
    let publish = |pm: &SimPm| {
        for at in [0, 4096] {
            let durable = pm.fence(pm.copy(at + 64, &[9; 64]).unwrap());
            let pointer = pm.publish_u64(at, 1, durable).unwrap();
            pm.fence(pm.flush(pointer));
        }
    };
    let trace = record(publish);
    let fences: Vec<Site> = trace
        .events
        .iter()
        .filter_map(|event| match event {
            Event::Fence { site, .. } => Some(*site),
            _ => None,
        })
        .collect();
    assert_eq!((fences.len(), fences[0], fences[1]), (4, fences[2], fences[3]));
    assert_ne!(fences[0], fences[1]);
    assert_eq!(record_with(Some(Defect::SkipFenceAt(fences[0])), publish).fences(), 2);
    let flushes = |trace: &Trace| trace.events.iter().filter(|e| matches!(e, Event::Flush { .. })).count();
    let site = trace.events.iter().find_map(|event| match event {
        Event::Flush { site, .. } => Some(*site),
        _ => None,
    });
    assert_eq!(flushes(&trace), 2);
    assert_eq!(flushes(&record_with(site.map(Defect::SkipFlushAt), publish)), 0);
}

#[test]
fn reads_are_noted_by_line() {
    let pm = SimPm::new(LEN);
    pm.start_noting_reads();
    pm.read(100, &mut [0; 100]).unwrap();
    pm.load_u64(4096).unwrap();
    pm.stop_noting_reads();
    pm.read(0, &mut [0; 8]).unwrap();
    let lines: Vec<u64> = (0..LEN / 64).filter(|line| pm.was_read(*line)).collect();
    assert_eq!(lines, [1, 2, 3, 64]);
}

#[test]
fn words_that_do_not_change_make_no_images() {
    let trace = record(|pm| {
        let mut entry = [0; 64];
        entry[8] = 1;
        pm.copy(0, &entry).unwrap().may_be_lost();
    });
    let mut replay = Replay::new(Image::zeros(LEN), &trace);
    replay.advance().unwrap();
    assert_eq!(replay.images(&Sampling::default()).len(), 2);
}
