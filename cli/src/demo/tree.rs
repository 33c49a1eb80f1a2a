//! A real source tree: chosen, copied, archived, and compared by checksum.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::failure::Failure;
use nacre_engine::size;

/// The most files of a copy, so that the demo stays short.
const MAX_FILES: usize = 10_000;
/// The number of files of a generated tree.
const MADE_UP_FILES: usize = 3_000;
/// Names of directories without sources.
const NO_SOURCES: [&str; 3] = ["target", ".git", "node_modules"];

/// The origin of the sources.
pub(crate) enum Tree {
    /// A directory, and the most bytes that are copied from it.
    Found(PathBuf, u64),
    /// Generated files, because no sources were found.
    MadeUp,
}

/// Checksums of the copied files, by path below the tree.
pub(crate) struct Copied {
    files: BTreeMap<PathBuf, (u64, u32)>,
}

impl Tree {
    /// The tree that the user named. Otherwise the first of these that exists: sources of crates, of Rust itself, of
    /// this directory, or C headers. An error means that the named tree cannot be read.
    pub(crate) fn choose(named: Option<&Path>, limit: u64) -> Result<Tree, Failure> {
        if let Some(dir) = named {
            let found = fs::read_dir(dir).map_err(|error| Failure::new("demo", dir.display(), error));
            return found.map(|_| Tree::Found(dir.to_owned(), limit));
        }
        let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
        let places = [
            home.join(".cargo/registry/src"),
            std::env::current_dir().unwrap_or_default(),
            "/usr/include".into(),
        ];
        let found = places.into_iter().find(|place| place.is_absolute() && has_sources(place));
        Ok(found.map_or(Tree::MadeUp, |place| Tree::Found(place, limit)))
    }

    /// Copies the tree, and reports it.
    pub(crate) fn copy_to(
        &self,
        to: &Path,
        tell: &mut dyn FnMut(&str) -> Result<(), Failure>,
    ) -> Result<Copied, Failure> {
        let failed = |error: io::Error| Failure::new("copy", to.display(), error);
        let mut copied = Copied { files: BTreeMap::new() };
        fs::create_dir_all(to).map_err(failed)?;
        let name = match self {
            Tree::Found(from, limit) => {
                copy_dir(from, to, Path::new(""), *limit, &mut copied).map_err(failed)?;
                from.display().to_string()
            }
            Tree::MadeUp => {
                make_up(to, &mut copied).map_err(failed)?;
                "a tree that is made up, for none was found".to_owned()
            }
        };
        let (files, bytes) = copied.total();
        tell(&format!("{name}: {files} files, {}", size::print(bytes)))?;
        Ok(copied)
    }
}

fn has_sources(dir: &Path) -> bool {
    fs::read_dir(dir).is_ok_and(|mut entries| entries.any(|entry| entry.is_ok()))
}

fn copy_dir(from: &Path, to: &Path, below: &Path, limit: u64, copied: &mut Copied) -> io::Result<()> {
    let mut entries: Vec<_> = fs::read_dir(from.join(below))?.collect::<Result<_, _>>()?;
    entries.sort_by_key(|entry| entry.file_name());
    for entry in entries {
        let (files, bytes) = copied.total();
        if files >= MAX_FILES || bytes >= limit {
            return Ok(());
        }
        let path = below.join(entry.file_name());
        let kind = entry.file_type()?;
        if kind.is_dir() && !NO_SOURCES.iter().any(|name| entry.file_name() == *name) {
            fs::create_dir(to.join(&path))?;
            copy_dir(from, to, &path, limit, copied)?;
        } else if kind.is_file() && bytes + entry.metadata()?.len() <= limit {
            // A file that changes during the copy is compared with the written data.
            let content = fs::read(entry.path())?;
            write_file(to, path, &content, copied)?;
        }
    }
    Ok(())
}

fn make_up(to: &Path, copied: &mut Copied) -> io::Result<()> {
    for number in 0..MADE_UP_FILES {
        let dir = PathBuf::from(format!("module{}", number % 60));
        fs::create_dir_all(to.join(&dir))?;
        let line = format!("pub fn function_{number}(x: u64) -> u64 {{ x.wrapping_mul({number}) }}\n");
        write_file(
            to,
            dir.join(format!("file{number}.rs")),
            line.repeat(20 + number % 200).as_bytes(),
            copied,
        )?;
    }
    Ok(())
}

fn write_file(to: &Path, path: PathBuf, content: &[u8], copied: &mut Copied) -> io::Result<()> {
    fs::write(to.join(&path), content)?;
    copied.files.insert(path, (content.len() as u64, crc32c::crc32c(content)));
    Ok(())
}

impl Copied {
    fn total(&self) -> (usize, u64) {
        (self.files.len(), self.files.values().map(|(bytes, _)| bytes).sum())
    }

    /// Reads every file again. Returns the number of correct files and bytes. An error names the first wrong file.
    pub(crate) fn verify(&self, dir: &Path) -> Result<(usize, u64), Failure> {
        for (path, (bytes, checksum)) in &self.files {
            let path = dir.join(path);
            let content = fs::read(&path).map_err(|error| Failure::new("verify", path.display(), error))?;
            if content.len() as u64 != *bytes || crc32c::crc32c(&content) != *checksum {
                return Err(Failure::new("verify", path.display(), "its content is not as written"));
            }
        }
        Ok(self.total())
    }
}

/// An archive of the tree, on the mount.
pub(crate) struct Archive {
    path: PathBuf,
    bytes: u64,
    checksum: u32,
}

/// Archives `dir/tree` with tar, through a pipe that is checksummed before the data reaches the file.
pub(crate) fn archive(dir: &Path) -> Result<Archive, Failure> {
    let path = dir.join("tree.tar");
    let failed = |error: io::Error| Failure::new("archive", path.display(), error);
    let mut tar = Command::new("tar")
        .args(["-c", "-f", "-", "-C"])
        .arg(dir)
        .arg("tree")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let mut input = tar.stdout.take().expect("a pipe was asked for");
    let mut file = File::create(&path).map_err(failed)?;
    let mut archive = Archive { path: path.clone(), bytes: 0, checksum: 0 };
    let mut buffer = vec![0; 256 * 1024];
    loop {
        let length = input.read(&mut buffer).map_err(failed)?;
        if length == 0 {
            break;
        }
        file.write_all(&buffer[..length]).map_err(failed)?;
        archive.bytes += length as u64;
        archive.checksum = crc32c::crc32c_append(archive.checksum, &buffer[..length]);
    }
    file.sync_all().map_err(failed)?;
    let status = tar.wait().map_err(failed)?;
    if status.success() {
        Ok(archive)
    } else {
        Err(Failure::new("archive", path.display(), format!("tar: {status}")))
    }
}

impl Archive {
    /// Reads the archive again. An error means that it differs from the written data.
    pub(crate) fn verify(&self) -> Result<(), Failure> {
        let content =
            fs::read(&self.path).map_err(|error| Failure::new("verify", self.path.display(), error))?;
        if content.len() as u64 == self.bytes && crc32c::crc32c(&content) == self.checksum {
            return Ok(());
        }
        Err(Failure::new("verify", self.path.display(), "its content is not as written"))
    }
}

impl fmt::Display for Archive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tree.tar: {}, checksum {:08x}", size::print(self.bytes), self.checksum)
    }
}
