//! Parts of files that are read and written where they lie.

use nacre::{FileOptions, FileSystem, Kind, MkfsOptions, OpenOptions, Preset};

const BLOCK: usize = 4096;

/// On both layouts, bare and below a write buffer. Where the memory is as fast as DRAM the buffer takes nothing, so that all is
/// done once more on memory that is slower: what is mapped then waits in DRAM before.
fn each(mut test: impl FnMut(Preset, &FileSystem)) {
    for (preset, emulation) in [
        (Preset::Nova, None),
        (Preset::Pmfs, None),
        (Preset::Nacre, None),
        (Preset::Hinfs, None),
        (Preset::Nacre, Some("latency=200")),
        (Preset::Hinfs, Some("latency=200")),
        (Preset::HinfsWb, Some("latency=200")),
        (Preset::HinfsNclfw, Some("latency=200")),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let device = dir.path().join("pm");
        let make = MkfsOptions { preset, ..MkfsOptions::with_size(32 << 20) };
        let slower = emulation.map(|text| text.parse().unwrap());
        let options = OpenOptions { emulation: slower, ..OpenOptions::default() };
        let fs = FileSystem::create(&device, &make, &options).unwrap();
        test(preset, &fs);
        if emulation.is_some() {
            assert!(fs.cache().unwrap().written_lazily > 0, "{preset}: nothing waited");
        }
        fs.close().unwrap();
        assert!(
            nacre::check(&device, nacre::Repair::None, &Default::default()).unwrap().is_sound(),
            "{preset}"
        );
    }
}

fn open(fs: &FileSystem, path: &str) -> nacre::File {
    FileOptions::new().read(true).write(true).create(true).open(fs, path).unwrap()
}

#[test]
fn what_is_written_to_a_mapping_is_in_the_file() {
    each(|preset, fs| {
        let file = open(fs, "/file");
        // In several pieces, the last first, so that they do not lie together.
        for block in (0..8).rev() {
            file.write_at(&[block as u8; BLOCK], block * BLOCK as u64).unwrap();
            open(fs, "/between").append(&[9; BLOCK]).unwrap();
        }
        let before = file.metadata().unwrap().modified();
        let mapping = file.map(100..7 * BLOCK as u64 + 50).unwrap();
        assert_eq!((mapping.range(), mapping.len()), (100..28722, 28622));
        let mut bytes = vec![0; 28622];
        mapping.read_at(&mut bytes, 0).unwrap();
        assert!(
            (0..8u8).all(|block| bytes[(usize::from(block) * BLOCK).saturating_sub(100)] == block),
            "{preset}"
        );
        mapping.write_at(&[0xaa; 5000], 4000).unwrap();
        mapping.write_all_at(&[(0, b"begin"), (28600, b"end")]).unwrap();
        assert_eq!(mapping.load(4).unwrap() & 0xff, u64::from(b'n'));
        mapping.store(28, u64::from_le_bytes(*b"12345678")).unwrap();
        let content = fs.read("/file").unwrap();
        assert_eq!(&content[100..105], b"begin");
        assert_eq!(&content[128..136], b"12345678");
        assert!(content[4100..9100].iter().all(|&byte| byte == 0xaa) && content[9100] == 2, "{preset}");
        assert_eq!(&content[28700..28703], b"end");
        for (offset, len) in [(0, 28623), (28622, 1), (u64::MAX, 2)] {
            assert_eq!(mapping.read_at(&mut vec![0; len], offset).unwrap_err().kind(), Kind::InvalidInput);
            assert_eq!(mapping.write_at(&vec![0; len], offset).unwrap_err().kind(), Kind::InvalidInput);
        }
        assert_eq!(mapping.load(1).unwrap_err().kind(), Kind::InvalidInput);
        drop(mapping);
        assert!(file.metadata().unwrap().modified() >= before);
    });
}

#[test]
fn what_is_mapped_stays_where_it_is() {
    each(|preset, fs| {
        let file = open(fs, "/file");
        file.write_at(&[1; 4 * BLOCK], 0).unwrap();
        let mapping = file.map(0..2 * BLOCK as u64).unwrap();
        let place = file.extents().unwrap();
        let free = fs.statfs().free;
        let busy = |result: nacre::Result<()>| assert_eq!(result.unwrap_err().kind(), Kind::Busy, "{preset}");
        busy(file.set_len(BLOCK as u64));
        busy(file.punch_hole(0, BLOCK as u64));
        let moves = preset.layout() == nacre::LayoutKind::Log;
        if moves {
            busy(file.write_at(&[2; 10], 5).map(drop));
            busy(file.write_at(&[2; BLOCK], 0).map(drop));
        } else {
            file.write_at(&[2; 10], 5).unwrap();
        }
        assert_eq!((file.extents().unwrap(), fs.statfs().free), (place, free), "{preset}");
        // Nothing of it lies there yet.
        file.append(b"more").unwrap();
        fs.remove_file("/file").unwrap();
        mapping.write_at(b"still", 0).unwrap();
        let mut read = [0; 5];
        file.read_at(&mut read, 0).unwrap();
        assert_eq!(&read, b"still");
        drop(mapping);
        file.write_at(&[3; 10], 5).unwrap();
        file.set_len(1).unwrap();
    });
}

#[test]
fn what_cannot_be_mapped_is_refused() {
    each(|_, fs| {
        let file = open(fs, "/file");
        file.write_at(&[1; BLOCK], BLOCK as u64).unwrap();
        for range in [0..10, BLOCK as u64 - 1..BLOCK as u64 + 1, 5000..5000, 5000..8193, 9000..9001] {
            assert_eq!(file.map(range.clone()).unwrap_err().kind(), Kind::InvalidInput, "{range:?}");
        }
        drop(file.map(4096..8192).unwrap());
        let reader = FileOptions::new().read(true).open(fs, "/file").unwrap();
        let mapping = reader.map(4096..8192).unwrap();
        assert_eq!(mapping.write_at(b"x", 0).unwrap_err().kind(), Kind::BadHandle);
        assert_eq!(mapping.store(0, 1).unwrap_err().kind(), Kind::BadHandle);
        drop(mapping);
        let writer = FileOptions::new().write(true).open(fs, "/file").unwrap();
        assert_eq!(writer.map(4096..8192).unwrap_err().kind(), Kind::BadHandle);
        // Nothing is held by what was refused.
        file.set_len(0).unwrap();
    });
}
