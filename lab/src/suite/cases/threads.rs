//! Several threads at once.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use nacre_engine::{Kind, RenameMode};

use super::super::fs::{Fs, View, assert_same, pattern, read_exactly, write_all};
use super::super::runner::Case;
use super::super::target::{Need, Open};
use super::case;

const THREADS: usize = 4;

pub(super) const CASES: &[Case] = &[
    case("threads-different-files", &[], different_files),
    case("threads-one-file-different-blocks", &[], different_blocks),
    case("threads-one-file-same-blocks", &[], same_blocks),
    case("threads-appending", &[], appending),
    case("threads-creating-in-one-directory", &[], creating),
    case("threads-creating-the-same", &[], creating_same),
    case("threads-removing-the-same", &[], removing_same),
    case("threads-renaming-over-a-name", &[], renaming_over),
    case("threads-renaming-across", &[Need::Exchange], renaming_across),
    case("threads-moving-directories", &[], moving_directories),
    case("threads-directory-that-comes-and-goes", &[], comes_and_goes),
    case("threads-reading-while-writing", &[], reading_while_writing),
    case("threads-reading-whole-blocks", &[Need::WholeBlocks], reading_whole_blocks),
    case("threads-reading-while-truncating", &[], reading_while_truncating),
    case("threads-listing-while-changing", &[Need::StableCookies], listing_while_changing),
    case("threads-unlinking-open-files", &[], unlinking_open),
];

/// Runs a function on all threads at once.
fn on_threads(fs: View<'_>, run: impl Fn(View<'_>, usize) + Sync) {
    let barrier = Barrier::new(THREADS);
    let (run, barrier) = (&run, &barrier);
    thread::scope(|scope| {
        for index in 0..THREADS {
            scope.spawn(move || {
                barrier.wait();
                run(fs, index);
            });
        }
    });
}

fn different_files(fs: &mut Fs<'_>) {
    let fs = fs.view();
    on_threads(fs, |fs, thread| {
        fs.directory(format!("dir-{thread}"));
        for round in 0..30u64 {
            let path = format!("dir-{thread}/file-{}", round % 7);
            let bytes = pattern(thread as u64 * 1000 + round, 0, 1000 * (1 + round as usize % 40));
            fs.write_file(&path, &bytes);
            assert_same(&fs.read_file(&path), &bytes, &path);
            if round % 3 == 0 {
                fs.unlink(&path).unwrap();
            }
        }
    });
    for thread in 0..THREADS {
        assert_eq!(fs.names(format!("dir-{thread}")).len(), 5);
    }
}

fn different_blocks(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let blocks = 256u64;
    fs.write_file("file", &pattern(0, 0, blocks as usize * 4096));
    on_threads(fs, |fs, thread| {
        let file = fs.opened("file", Open::BOTH);
        for round in 1..4u64 {
            for block in (0..blocks).filter(|block| *block as usize % THREADS == thread) {
                let bytes = pattern(round * 1000 + block, 0, 4096);
                write_all(file.as_ref(), block * 4096, &bytes);
                assert_same(&read_exactly(file.as_ref(), block * 4096, 4096), &bytes, "my own block");
            }
        }
    });
    for block in 0..blocks {
        let found = read_exactly(fs.opened("file", Open::READ).as_ref(), block * 4096, 4096);
        assert_same(&found, &pattern(3000 + block, 0, 4096), &format!("block {block}"));
    }
}

fn same_blocks(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let size = 64 * 1024;
    fs.write_file("file", &vec![0; size]);
    on_threads(fs, |fs, thread| {
        let file = fs.opened("file", Open::BOTH);
        for round in 0..20u8 {
            // Each thread owns every fourth run of 100 bytes, so that all of them share every block.
            for run in (thread..size / 100).step_by(THREADS) {
                let byte = round * 8 + thread as u8 + 1;
                write_all(file.as_ref(), run as u64 * 100, &[byte; 100]);
            }
        }
    });
    let found = fs.read_file("file");
    for run in 0..size / 100 {
        let byte = 19 * 8 + (run % THREADS) as u8 + 1;
        assert_same(&found[run * 100..run * 100 + 100], &[byte; 100], &format!("run {run}"));
    }
}

fn appending(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let records = 300;
    on_threads(fs, |fs, thread| {
        let file = fs.opened("file", Open::APPEND);
        for record in 0..records {
            let mut bytes = vec![thread as u8; 50 + thread * 10];
            bytes[1..5].copy_from_slice(&u32::to_le_bytes(record));
            assert_eq!(file.append(&bytes), Ok(bytes.len()));
        }
    });
    let found = fs.read_file("file");
    let mut next = [0; THREADS];
    let mut rest = &found[..];
    while let Some(&thread) = rest.first() {
        let thread = thread as usize;
        let (record, after) = rest.split_at(50 + thread * 10);
        let number = u32::from_le_bytes(record[1..5].try_into().unwrap());
        assert_eq!(number, next[thread], "the records of a thread are in order and whole");
        assert!(record[5..].iter().all(|byte| *byte == thread as u8));
        next[thread] += 1;
        rest = after;
    }
    assert_eq!(next, [records; THREADS]);
}

fn creating(fs: &mut Fs<'_>) {
    let fs = fs.view();
    on_threads(fs, |fs, thread| {
        for index in 0..250 {
            let path = format!("file-{thread}-{index}");
            fs.write_file(&path, path.as_bytes());
            if index % 5 == 0 {
                fs.rename(&path, format!("renamed-{thread}-{index}")).unwrap();
            }
            if index % 5 == 1 {
                fs.unlink(&path).unwrap();
            }
        }
    });
    assert_eq!(fs.names("").len(), THREADS * 200);
    for thread in 0..THREADS {
        for index in (0..250).filter(|index| index % 5 > 1) {
            let path = format!("file-{thread}-{index}");
            assert_eq!(fs.read_file(&path), path.as_bytes());
        }
    }
}

fn creating_same(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let created = AtomicUsize::new(0);
    on_threads(fs, |fs, thread| {
        for index in 0..200 {
            let name = format!("name-{index}");
            let verdict = match thread % 2 {
                0 => fs.open(&name, Open::NEW).map(drop),
                _ => fs.mkdir(&name),
            };
            match verdict {
                Ok(()) => drop(created.fetch_add(1, Ordering::Relaxed)),
                Err(kind) => assert_eq!(kind, Kind::Exists),
            }
        }
    });
    assert_eq!(created.into_inner(), 200, "each name was made once");
    assert_eq!(fs.names("").len(), 200);
}

fn removing_same(fs: &mut Fs<'_>) {
    let fs = fs.view();
    for index in 0..200 {
        fs.touch(format!("name-{index}"));
    }
    let removed = AtomicUsize::new(0);
    on_threads(fs, |fs, thread| {
        for index in 0..200 {
            let name = format!("name-{index}");
            let verdict = match thread % 2 {
                0 => fs.unlink(&name),
                _ => fs.rename(&name, format!("taken-{index}-{thread}")),
            };
            match verdict {
                Ok(()) => drop(removed.fetch_add(1, Ordering::Relaxed)),
                Err(kind) => assert_eq!(kind, Kind::NotFound),
            }
        }
    });
    assert_eq!(removed.into_inner(), 200, "each name was taken once");
    assert!(fs.names("").iter().all(|name| name.starts_with(b"taken-")));
}

fn renaming_over(fs: &mut Fs<'_>) {
    let fs = fs.view();
    fs.write_file("target", &[0; 5000]);
    let done = AtomicUsize::new(0);
    on_threads(fs, |fs, thread| {
        if thread < 2 {
            for round in 0..150u8 {
                let name = format!("new-{thread}");
                fs.write_file(&name, &[round; 5000]);
                fs.rename(&name, "target").unwrap();
            }
            done.fetch_add(1, Ordering::Release);
        } else {
            while done.load(Ordering::Acquire) < 2 {
                let bytes = fs.read_file("target");
                assert_eq!(bytes.len(), 5000, "the name is always there and whole");
                assert!(bytes.iter().all(|byte| *byte == bytes[0]));
            }
        }
    });
    assert_eq!(fs.names(""), [b"target"]);
}

fn renaming_across(fs: &mut Fs<'_>) {
    let fs = fs.view();
    for dir in ["a", "b"] {
        fs.directory(dir);
        for index in 0..10 {
            fs.write_file(format!("{dir}/file-{index}"), format!("{dir}{index}").as_bytes());
        }
    }
    on_threads(fs, |fs, thread| {
        for round in 0..200 {
            let index = (round * 7 + thread * 3) % 10;
            let (from, to) = if (round + thread) % 2 == 0 { ("a", "b") } else { ("b", "a") };
            let (from, to) = (format!("{from}/file-{index}"), format!("{to}/file-{index}"));
            assert_eq!(fs.rename_mode(from, to, RenameMode::Exchange), Ok(()));
        }
    });
    let mut contents: Vec<Vec<u8>> = Vec::new();
    for dir in ["a", "b"] {
        assert_eq!(fs.names(dir).len(), 10);
        contents.extend(fs.names(dir).iter().map(|name| fs.read_file([dir.as_bytes(), b"/", name].concat())));
    }
    contents.sort();
    contents.dedup();
    assert_eq!(contents.len(), 20, "nothing was lost and nothing doubled");
}

fn moving_directories(fs: &mut Fs<'_>) {
    let fs = fs.view();
    // Threads move a few directories into each other; whatever happens, it stays a tree.
    for index in 0..6 {
        fs.directory(format!("d{index}"));
    }
    on_threads(fs, |fs, thread| {
        let mut state = thread as u64 + 1;
        let mut pick = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) % 6
        };
        for _ in 0..300 {
            let (a, b, c) = (pick(), pick(), pick());
            let from = [format!("d{a}"), format!("d{b}/d{a}"), format!("d{c}/d{b}/d{a}")]
                [pick() as usize % 3]
                .clone();
            let to = [format!("d{a}"), format!("d{c}/d{a}"), format!("d{b}/d{c}/d{a}")][pick() as usize % 3]
                .clone();
            match fs.rename(from, to) {
                Ok(()) | Err(Kind::NotFound | Kind::InvalidInput | Kind::NotEmpty) => {}
                Err(kind) => panic!("rename: {kind:?}"),
            }
        }
    });
    let mut found = Vec::new();
    let mut unseen = vec![Vec::new()];
    while let Some(path) = unseen.pop() {
        let names = fs.names(&path);
        let links = fs.stat(&path).links;
        assert_eq!(links, 2 + names.len() as u64, "links of {}", String::from_utf8_lossy(&path));
        for name in names {
            let inner = if path.is_empty() { name.clone() } else { [&path[..], b"/", &name].concat() };
            found.push(name);
            unseen.push(inner);
        }
    }
    found.sort();
    assert_eq!(found, [b"d0", b"d1", b"d2", b"d3", b"d4", b"d5"], "every directory is in the tree, once");
}

fn comes_and_goes(fs: &mut Fs<'_>) {
    let fs = fs.view();
    on_threads(fs, |fs, thread| {
        for round in 0..200 {
            if thread == 0 {
                assert!(matches!(fs.mkdir("dir"), Ok(()) | Err(Kind::Exists)));
                assert!(matches!(fs.rmdir("dir"), Ok(()) | Err(Kind::NotEmpty | Kind::NotFound)));
            } else {
                let path = format!("dir/file-{thread}-{round}");
                match fs.open(&path, Open::NEW) {
                    Ok(file) => {
                        drop(file);
                        assert_eq!(fs.unlink(&path), Ok(()), "what is in it keeps it");
                    }
                    Err(kind) => assert_eq!(kind, Kind::NotFound),
                }
            }
        }
    });
    match fs.rmdir("dir") {
        Ok(()) | Err(Kind::NotFound) => {}
        Err(kind) => panic!("rmdir: {kind:?}"),
    }
}

/// Writers fill blocks with one byte each; readers check every block that they see meanwhile.
fn write_and_read(fs: View<'_>, check: impl Fn(&[u8]) + Sync) {
    fs.write_file("file", &[7; 40_960]);
    let writers = AtomicUsize::new(2);
    on_threads(fs, |fs, thread| {
        let file = fs.opened("file", Open::BOTH);
        if thread < 2 {
            for round in 0..600u64 {
                let block = (round * 3 + thread as u64) % 10;
                write_all(file.as_ref(), block * 4096, &[(round % 200) as u8; 4096]);
            }
            writers.fetch_sub(1, Ordering::Release);
        } else {
            while writers.load(Ordering::Acquire) > 0 {
                for block in 0..10 {
                    check(&read_exactly(file.as_ref(), block * 4096, 4096));
                }
            }
        }
    });
}

fn reading_while_writing(fs: &mut Fs<'_>) {
    write_and_read(fs.view(), |block| {
        assert!(block.iter().all(|byte| *byte < 200), "a byte that was never written");
    });
}

fn reading_whole_blocks(fs: &mut Fs<'_>) {
    write_and_read(fs.view(), |block| {
        let torn = block.iter().position(|byte| *byte != block[0]);
        assert_eq!(torn, None, "the block is torn");
    });
}

fn reading_while_truncating(fs: &mut Fs<'_>) {
    let fs = fs.view();
    let size = 20_000;
    let bytes = pattern(1, 0, size);
    fs.write_file("file", &bytes);
    let stop = AtomicBool::new(false);
    on_threads(fs, |fs, thread| {
        let file = fs.opened("file", Open::BOTH);
        if thread == 0 {
            for round in 0..150 {
                file.set_len((round * 131) % size as u64).unwrap();
                write_all(file.as_ref(), 0, &bytes);
            }
            stop.store(true, Ordering::Release);
        } else {
            let mut buf = vec![0; size];
            while !stop.load(Ordering::Acquire) {
                let count = file.read_at(0, &mut buf).unwrap();
                let wrong = (0..count).find(|&at| buf[at] != bytes[at] && buf[at] != 0);
                assert_eq!(wrong, None, "neither the content nor zero");
            }
        }
    });
    assert_same(&fs.read_file("file"), &bytes, "at the end");
}

fn listing_while_changing(fs: &mut Fs<'_>) {
    let fs = fs.view();
    for index in 0..100 {
        fs.touch(format!("steady-{index:02}"));
    }
    let changers = AtomicUsize::new(2);
    on_threads(fs, |fs, thread| {
        if thread < 2 {
            for round in 0..400 {
                let name = format!("passing-{thread}-{}", round % 20);
                fs.touch(&name);
                if round % 2 == 0 {
                    fs.rename(&name, format!("{name}-renamed")).unwrap();
                    fs.unlink(format!("{name}-renamed")).unwrap();
                }
            }
            changers.fetch_sub(1, Ordering::Release);
        } else {
            while changers.load(Ordering::Acquire) > 0 {
                let mut steady = Vec::new();
                let mut cookie = 0;
                loop {
                    let entries = fs.read_dir("", cookie, 17).unwrap();
                    let Some(last) = entries.last() else { break };
                    cookie = last.cookie;
                    steady.extend(
                        entries.into_iter().map(|e| e.name).filter(|name| name.starts_with(b"steady")),
                    );
                }
                steady.sort();
                assert_eq!(steady.len(), 100, "what stays is listed once");
                steady.dedup();
                assert_eq!(steady.len(), 100, "what stays is listed once");
            }
        }
    });
}

fn unlinking_open(fs: &mut Fs<'_>) {
    let fs = fs.view();
    on_threads(fs, |fs, thread| {
        for round in 0..100u64 {
            let path = format!("file-{thread}");
            let bytes = pattern(round, thread as u64, 10_000);
            fs.write_file(&path, &bytes);
            let file = fs.opened(&path, Open::BOTH);
            fs.unlink(&path).unwrap();
            assert_same(&read_exactly(file.as_ref(), 0, 10_000), &bytes, "unlinked");
            file.write_at(20_000, b"more").unwrap();
            assert_eq!(file.stat().unwrap().size, 20_004);
        }
    });
    assert!(fs.names("").is_empty());
}
