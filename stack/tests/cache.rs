//! A file system that is opened with a write buffer.

use std::io::Write;

use nacre::{CacheOptions, CacheSettings, FileOptions, FileSystem, Kind, MkfsOptions, OpenOptions};

#[test]
fn what_is_written_through_the_buffer_is_there_after_closing() {
    let dir = tempfile::tempdir().unwrap();
    let device = dir.path().join("pm");
    let options = OpenOptions { cache: Some(CacheOptions::new(4 << 20)), ..OpenOptions::default() };
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
    assert!(fs.cache().is_none());
    assert_eq!(fs.set_cache(settings).unwrap_err().kind(), Kind::Unsupported);
}
