//! A file system that is opened with a write buffer.

use std::io::Write;

use nacre::{
    CacheOptions, CacheSettings, Checker, FileOptions, FileSystem, Granularity, Kind, Latencies, MkfsOptions,
    OpenOptions, Preset, WriteBuffer,
};

#[test]
fn what_is_written_through_the_buffer_is_there_after_closing() {
    let dir = tempfile::tempdir().unwrap();
    let device = dir.path().join("pm");
    let options = OpenOptions {
        buffer: WriteBuffer::With(CacheOptions::new(4 << 20)),
        // On memory as fast as DRAM writes go past the buffer.
        emulation: Some("latency=200".parse().unwrap()),
        ..OpenOptions::default()
    };
    let fs = FileSystem::create(&device, &MkfsOptions::with_size(64 << 20), &options).unwrap();
    let mut file = FileOptions::new().write(true).create(true).open(&fs, "/file").unwrap();
    file.write_all(&[7; 100_000]).unwrap();
    let cache = fs.info().unwrap().cache.unwrap();
    assert_eq!((cache.size, cache.written_lazily, cache.written_back), (4 << 20, 100_000, 0));
    assert!(cache.used >= 100_000);
    file.sync_all().unwrap();
    assert_eq!(fs.cache().unwrap().written_back, 100_000);
    file.write_all(b"and more").unwrap();
    let settings = CacheSettings { threads: 1, ..fs.cache_settings().unwrap() };
    fs.set_cache(settings).unwrap();
    assert_eq!(fs.cache_settings(), Some(settings));
    drop(file);
    fs.close().unwrap();

    let fs = FileSystem::open(&device, &OpenOptions::default()).unwrap();
    let bytes = fs.read("/file").unwrap();
    assert_eq!((bytes.len(), &bytes[100_000..]), (100_008, &b"and more"[..]));
    drop(fs);
    let never = OpenOptions { buffer: WriteBuffer::Never, ..OpenOptions::default() };
    let fs = FileSystem::open(&device, &never).unwrap();
    assert!(fs.cache().is_none());
    assert_eq!(fs.set_cache(settings).unwrap_err().kind(), Kind::Unsupported);
}

/// What is open at once, with the settings of its buffer.
fn opened(device: &std::path::Path, options: &OpenOptions) -> Option<(u64, Checker, Granularity)> {
    let fs = FileSystem::open(device, options).unwrap();
    let buffer = fs.cache().zip(fs.cache_settings());
    fs.close().unwrap();
    buffer.map(|(cache, settings)| (cache.size, settings.checker, settings.granularity))
}

#[test]
fn a_preset_has_its_buffer() {
    let dir = tempfile::tempdir().unwrap();
    let (full, off) = (Checker::Full, Checker::Off);
    for (preset, buffer) in [
        (Preset::Nacre, Some((full, Granularity::Lines))),
        (Preset::Nova, None),
        (Preset::Pmfs, None),
        (Preset::Hinfs, Some((full, Granularity::Lines))),
        (Preset::HinfsWb, Some((off, Granularity::Lines))),
        (Preset::HinfsNclfw, Some((full, Granularity::Blocks))),
    ] {
        let device = dir.path().join(preset.as_str());
        let make = MkfsOptions { preset, ..MkfsOptions::with_size(64 << 20) };
        let fs = FileSystem::create(&device, &make, &OpenOptions::default()).unwrap();
        assert_eq!(fs.cache().is_some(), preset.buffers_writes());
        fs.write("/file", b"content").unwrap();
        fs.close().unwrap();
        let usual = OpenOptions::default();
        assert_eq!(
            opened(&device, &usual),
            buffer.map(|(checker, unit)| (8 << 20, checker, unit)),
            "{preset}"
        );
        let with = OpenOptions { buffer: WriteBuffer::With(CacheOptions::new(1 << 20)), ..usual.clone() };
        let (checker, unit) = buffer.unwrap_or((full, Granularity::Lines));
        assert_eq!(opened(&device, &with), Some((1 << 20, checker, unit)), "{preset}");
        let never = OpenOptions { buffer: WriteBuffer::Never, ..usual };
        assert_eq!(opened(&device, &never), None);
        assert_eq!(FileSystem::open(&device, &never).unwrap().read("/file").unwrap(), b"content");
    }
    // Another preset of the same layout can be asked for.
    let device = dir.path().join("pmfs");
    let other = |preset| OpenOptions { preset: Some(preset), ..OpenOptions::default() };
    assert_eq!(opened(&device, &other(Preset::HinfsWb)), Some((8 << 20, off, Granularity::Lines)));
    let refused = FileSystem::open(&device, &other(Preset::Nova)).unwrap_err();
    assert_eq!(refused.kind(), Kind::InvalidInput);
}

/// Numbers that happened to be the default were taken for nobody's, and measured or emulated ones came in their place.
#[test]
fn what_is_said_of_lines_counts_whatever_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let device = dir.path().join("pm");
    let make = MkfsOptions::with_size(64 << 20);
    drop(FileSystem::create(&device, &make, &OpenOptions::default()).unwrap());
    for emulation in [None, Some("latency=300".parse().unwrap())] {
        let said = Latencies::default();
        let settings = CacheSettings { latencies: Some(said), ..CacheSettings::default() };
        let with = CacheOptions { settings, ..CacheOptions::new(4 << 20) };
        let options = OpenOptions { buffer: WriteBuffer::With(with), emulation, ..OpenOptions::default() };
        let fs = FileSystem::open(&device, &options).unwrap();
        let cache = fs.cache().unwrap();
        assert_eq!(
            (cache.line_dram_ns, cache.line_pm_ns),
            (said.dram_ns, said.pm_ns),
            "{:?}",
            options.emulation
        );
        fs.close().unwrap();
    }
    let emulation = Some("latency=300".parse().unwrap());
    let fs = FileSystem::open(&device, &OpenOptions { emulation, ..OpenOptions::default() }).unwrap();
    assert_eq!(fs.cache().unwrap().line_pm_ns, 300);
    // Settings of somebody who says nothing of them leave them.
    fs.set_cache(CacheSettings { threads: 1, ..CacheSettings::default() }).unwrap();
    assert_eq!(fs.cache().unwrap().line_pm_ns, 300);
    fs.close().unwrap();
}
