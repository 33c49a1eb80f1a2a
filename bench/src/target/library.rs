//! nacre in the same process, without system calls.

use std::ffi::OsStr;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use nacre::{FileOptions, FileSystem, MkfsOptions, NewTier, OpenOptions, Preset, TierDevice, XattrMode};
use nacre_control::Info;
use nacre_engine::Error;

use super::{Below, File, Known, Open, Target, Traffic, control};

/// An open file system.
pub struct Library {
    fs: FileSystem,
}

impl Library {
    /// A new file system on a device that does not exist yet, with all its pages present. A blank device below it
    /// becomes a tier, where one is given, which is as slow as it is.
    pub fn create(
        device: &Path,
        size: u64,
        preset: Preset,
        tier: Option<&Path>,
        options: &OpenOptions,
    ) -> Result<Library, Error> {
        let new = |path: &Path| NewTier {
            device: TierDevice { path: path.to_owned(), emulation: None },
            size: None,
            rank: None,
            force: false,
        };
        let tiers = tier.map(new).into_iter().collect();
        let make = MkfsOptions { preset, tiers, ..MkfsOptions::with_size(size) };
        Library::over(FileSystem::create(device, &make, options)?)
    }

    /// One that was made so, and closed, once more.
    pub fn open(device: &Path, tier: Option<&Path>, options: &OpenOptions) -> Result<Library, Error> {
        let device_of = |path: &Path| TierDevice { path: path.to_owned(), emulation: None };
        let tiers = tier.map(device_of).into_iter().collect();
        Library::over(FileSystem::open(device, &OpenOptions { tiers, ..options.clone() })?)
    }

    fn over(fs: FileSystem) -> Result<Library, Error> {
        fs.prefault(&AtomicBool::new(false))?;
        Ok(Library { fs })
    }
}

impl Target for Library {
    fn open(&self, path: &Path, how: Open) -> io::Result<Box<dyn File>> {
        let mut options = FileOptions::new();
        options.read(how.read).write(how.write).append(how.append).create(how.create);
        options.truncate(how.truncate).sync(how.sync).mode(0o644);
        Ok(Box::new(LibraryFile(options.open(&self.fs, path)?)))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        Ok(self.fs.create_dir(path)?)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        Ok(self.fs.remove_file(path)?)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        Ok(self.fs.remove_dir(path)?)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        Ok(self.fs.rename(from, to)?)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        Ok(self.fs.hard_link(from, to)?)
    }

    fn symlink(&self, text: &Path, path: &Path) -> io::Result<()> {
        Ok(self.fs.symlink(text, path)?)
    }

    fn set_mode(&self, path: &Path, mode: u32) -> io::Result<()> {
        Ok(self.fs.set_permissions(path, std::fs::Permissions::from_mode(mode))?)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        Ok(FileOptions::new().read(true).open(&self.fs, path)?.sync_all()?)
    }

    fn stat(&self, path: &Path) -> io::Result<u64> {
        Ok(self.fs.metadata(path)?.len())
    }

    fn read_dir(&self, path: &Path, each: &mut dyn FnMut(&OsStr)) -> io::Result<()> {
        for entry in self.fs.read_dir(Path::new("/").join(path))? {
            each(entry?.file_name());
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(self.fs.sync()?)
    }

    fn below(&self) -> io::Result<Option<Below>> {
        control::fastest(&self.fs.tiers()).map(Some)
    }

    fn move_file(&self, path: &Path, to: Option<u8>) -> io::Result<u64> {
        Ok(match to {
            Some(tier) => self.fs.demote(path, tier)?,
            None => self.fs.promote(path)?,
        })
    }

    fn attribute(&self, path: &Path, name: &[u8]) -> io::Result<Vec<u8>> {
        Ok(self.fs.get_xattr(path, name)?)
    }

    fn set_attribute(&self, path: &Path, name: &[u8], value: &[u8]) -> io::Result<()> {
        Ok(self.fs.set_xattr(path, name, value, XattrMode::Set)?)
    }

    fn traffic(&self) -> Option<Traffic> {
        Some(Traffic::of(&self.fs.info().ok()?))
    }

    fn information(&self) -> Option<Info> {
        self.fs.info().ok()
    }

    fn mounted_in(&self) -> Option<Duration> {
        Some(self.fs.recovery().duration)
    }

    /// No kernel is between.
    fn drop_pages(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn directory(&self) -> Option<&Path> {
        None
    }

    fn close(self: Box<Self>) -> io::Result<()> {
        Ok(self.fs.close()?)
    }
}

/// An open file.
#[derive(Debug)]
pub struct LibraryFile(nacre::File);

impl File for LibraryFile {
    fn known(&self) -> Known<'_> {
        Known::Library(self)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(self.0.read_at(buffer, offset)?)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        match self.0.write_at(data, offset)? {
            written if written == data.len() => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }

    fn append(&self, data: &[u8]) -> io::Result<()> {
        self.0.append(data)?;
        Ok(())
    }

    fn sync(&self, data_only: bool) -> io::Result<()> {
        let synced = if data_only { self.0.sync_data() } else { self.0.sync_all() };
        Ok(synced?)
    }

    fn set_len(&self, size: u64) -> io::Result<()> {
        Ok(self.0.set_len(size)?)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        Ok(self.0.allocate(offset, len)?)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }
}

#[cfg(test)]
mod tests {
    use nacre_control::TierInfo;
    use serde_json::json;

    use super::{Library, OpenOptions, Preset};
    use crate::target::{Open, Target, control};

    #[test]
    fn a_tier_is_known_from_its_own_words_and_from_those_of_a_mount() {
        let dir = tempfile::tempdir().unwrap();
        let tier = dir.path().join("tier");
        std::fs::File::create(&tier).unwrap().set_len(32 << 20).unwrap();
        let device = dir.path().join("pm");
        let library =
            Library::create(&device, 32 << 20, Preset::Nova, Some(&tier), &OpenOptions::default()).unwrap();
        let before = library.below().unwrap().unwrap();
        let file = library.open("file".as_ref(), Open::CREATE).unwrap();
        file.write_at(&[7; 8192], 0).unwrap();
        assert_eq!(library.move_file("file".as_ref(), Some(before.tier)).unwrap(), 8192);
        assert_eq!(library.move_file("file".as_ref(), None).unwrap(), 8192);
        let below = library.below().unwrap().unwrap();
        assert_eq!((below.tier, below.moved - before.moved), (1, 2 * 8192));
        // A mount says the same in JSON.
        let said = json!(library.fs.tiers());
        let mut tiers: Vec<TierInfo> = serde_json::from_value(said).unwrap();
        assert_eq!(control::fastest(&tiers).unwrap(), below);
        tiers[0].draining = true;
        assert!(control::fastest(&tiers).is_err() && control::fastest(&[]).is_err());
    }
}
