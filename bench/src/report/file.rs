//! Reports as files.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use serde::Deserialize;

use super::schema::{Report, SCHEMA};
use crate::Error;

/// Reads a report of this version of the document or an older one.
pub fn read(path: &Path) -> Result<Report, Error> {
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
    parse(&text).map_err(|error| failed(&error).into())
}

/// The part that every version has.
#[derive(Deserialize)]
struct Head {
    schema: u32,
}

fn parse(text: &str) -> Result<Report, String> {
    // The version comes first: the same names may have another meaning in a newer document.
    let head: Head = serde_json::from_str(text)
        .map_err(|error| format!("no report of nacre bench: {error}; give a file that --json has written"))?;
    if head.schema > SCHEMA {
        return Err(format!(
            "the report has schema {}, and this nacre reads up to {SCHEMA}: use the nacre that wrote it, or a newer one",
            head.schema
        ));
    }
    serde_json::from_str(text).map_err(|error| format!("a report that is damaged: {error}"))
}

/// Replaces a file as a whole: valid contents stay valid at any interruption. A device or a pipe is written directly.
/// A symbolic link stays.
pub fn replace(path: &Path, contents: &str) -> Result<(), Error> {
    write(path, contents).map_err(|error| format!("{}: {error}", path.display()).into())
}

fn write(path: &Path, contents: &str) -> io::Result<()> {
    match Place::of(path)? {
        Place::Direct => File::options().write(true).open(path)?.write_all(contents.as_bytes()),
        Place::Regular(path) => {
            let draft = draft(&path);
            fs::write(&draft, contents)?;
            fs::rename(&draft, &path)
        }
    }
}

/// Checks that [`replace`] can write there, without a change.
pub fn check(path: &Path) -> Result<(), Error> {
    let checked = Place::of(path).and_then(|place| match place {
        // An open of a pipe would wait for its reader.
        Place::Direct => Ok(access(path, Access::WRITE_OK)?),
        Place::Regular(path) => {
            let draft = draft(&path);
            File::create(&draft)?;
            fs::remove_file(&draft)
        }
    });
    checked.map_err(|error| format!("{}: {error}", path.display()).into())
}

/// How a file is written.
enum Place {
    /// A regular file that is there or not: by a rename. The path leads through no symbolic link at its end.
    Regular(PathBuf),
    /// Another type of file: as it is.
    Direct,
}

impl Place {
    fn of(path: &Path) -> io::Result<Place> {
        match fs::metadata(path) {
            Ok(found) if found.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
            Ok(found) if found.is_file() => fs::canonicalize(path).map(Place::Regular),
            Ok(_) => Ok(Place::Direct),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let mut path = path.to_owned();
                while let Ok(target) = fs::read_link(&path) {
                    path = path.parent().unwrap_or(Path::new("/")).join(target);
                }
                Ok(Place::Regular(path))
            }
            Err(error) => Err(error),
        }
    }
}

/// The file that is renamed when it is complete.
fn draft(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Read as _;
    use std::os::unix::fs::{FileTypeExt, symlink};

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::{check, parse, replace};

    /// A device or a link became a regular file, and the target of the link kept its contents.
    #[test]
    fn links_and_special_files_stay_what_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("file"), "old").unwrap();
        symlink("file", at("link")).unwrap();
        symlink("later", at("dangling")).unwrap();
        symlink("link", at("second")).unwrap();
        for (name, target) in [("file", "file"), ("link", "file"), ("second", "file"), ("dangling", "later")]
        {
            check(&at(name)).unwrap();
            replace(&at(name), name).unwrap();
            assert_eq!(fs::read_to_string(at(target)).unwrap(), name);
            assert_eq!(at(name).is_symlink(), name != target, "{name}");
        }
        mknodat(CWD, at("pipe"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        check(&at("pipe")).unwrap();
        let reader = std::thread::spawn({
            let pipe = at("pipe");
            move || {
                let mut said = String::new();
                fs::File::open(pipe).unwrap().read_to_string(&mut said).unwrap();
                said
            }
        });
        replace(&at("pipe"), "to a reader").unwrap();
        assert_eq!(reader.join().unwrap(), "to a reader");
        assert!(fs::symlink_metadata(at("pipe")).unwrap().file_type().is_fifo());
        // No draft is left.
        let mut names: Vec<_> =
            fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["dangling", "file", "later", "link", "pipe", "second"]);
    }

    #[test]
    fn a_file_that_cannot_be_written_is_known_before_it_is() {
        let dir = tempfile::tempdir().unwrap();
        symlink("round", dir.path().join("round")).unwrap();
        for (name, why) in [("missing/file", "No such file"), ("", "directory"), ("round", "symbolic links")]
        {
            let error = check(&dir.path().join(name)).unwrap_err().to_string();
            assert!(error.contains(why), "{name}: {error}");
        }
        check(&dir.path().join("new")).unwrap();
        assert!(!dir.path().join("new").exists() && !dir.path().join("new.new").exists());
    }

    #[test]
    fn what_is_no_report_is_refused_in_words() {
        for (text, expected) in [
            ("", "no report of nacre bench"),
            ("{}", "no report of nacre bench"),
            ("{\"schema\": 1}", "damaged"),
            ("{\"schema\": 4, \"experiments\": \"something new\"}", "reads up to 3"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
