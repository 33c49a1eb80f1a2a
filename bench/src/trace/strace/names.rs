//! Calls with names: paths, and their fate.

use std::path::{Path, PathBuf};

use super::Converter;
use super::line::{Call, descriptor, field, join, quoted};
use crate::trace::format::What;

impl Converter {
    /// The path of an argument, from the directory that it starts from: a descriptor before it, or the process's own.
    pub(super) fn path(&mut self, pid: u32, dir: Option<&str>, path: &str) -> Option<PathBuf> {
        let path = quoted(path)?;
        let base = match dir.and_then(descriptor) {
            Some((number, Some(base))) => {
                if number == libc::AT_FDCWD {
                    self.process(pid).cwd = Some(base.clone());
                }
                Some(base)
            }
            _ => self.process(pid).cwd.clone(),
        };
        let whole = if path.is_absolute() { path } else { base?.join(path) };
        self.inside(&join(Path::new("/"), &whole))
    }

    /// Calls that change names.
    pub(super) fn names(&mut self, pid: u32, call: &Call<'_>, failed: bool) {
        let arg = |at: usize| call.args.get(at).copied().unwrap_or("");
        let at = call.name.ends_with("at") || call.name.ends_with("at2");
        let first = usize::from(at);
        match call.name {
            "mkdir" | "mkdirat" | "rmdir" | "unlink" | "unlinkat" | "truncate" | "chmod" | "fchmodat" => {
                let Some(path) = self.path(pid, at.then(|| arg(0)), arg(first)) else { return };
                let dir = call.name == "rmdir" || arg(2) == "AT_REMOVEDIR";
                match (call.name, failed) {
                    ("mkdir" | "mkdirat", false) => self.builder.mkdir(&path),
                    ("mkdir" | "mkdirat", true) => self.builder.add(true, What::Mkdir { path }),
                    ("truncate", _) => match arg(1).parse() {
                        Ok(size) if !failed => self.builder.truncate(&path, size),
                        _ => self.builder.leave_out("truncate that failed"),
                    },
                    ("chmod" | "fchmodat", false) => {
                        let Ok(mode) = u32::from_str_radix(arg(first + 1), 8) else { return };
                        self.builder.exists(&path, None);
                        self.builder.add(false, What::Chmod { path, mode: mode & 0o7777 });
                    }
                    ("chmod" | "fchmodat", true) => self.builder.leave_out("chmod that failed"),
                    (_, false) if dir => self.builder.rmdir(&path),
                    (_, true) if dir => self.builder.add(true, What::Rmdir { path }),
                    (_, false) => self.builder.unlink(&path),
                    (_, true) => self.builder.add(true, What::Unlink { path }),
                }
            }
            "rename" | "renameat" | "renameat2" | "link" | "linkat" => {
                let from = self.path(pid, at.then(|| arg(0)), arg(first));
                let to = self.path(pid, at.then(|| arg(2)), if at { arg(3) } else { arg(1) });
                let link = call.name.starts_with("link");
                match (from, to, failed) {
                    (None, None, _) => {}
                    _ if arg(4).contains("RENAME_EXCHANGE") => {
                        self.builder.leave_out("rename that exchanges")
                    }
                    (Some(path), Some(to), false) if link => self.builder.link(&path, &to),
                    (Some(path), Some(to), false) => self.builder.rename(&path, &to),
                    (Some(path), Some(to), true) if call.error == "ENOENT" && !link => {
                        self.builder.add(true, What::Rename { path, to });
                    }
                    (_, _, true) => self.builder.leave_out(format!("{} that failed", call.name)),
                    _ => self.builder.leave_out(format!("{} out of the directory, or into it", call.name)),
                }
            }
            "symlink" | "symlinkat" if !failed => {
                let path = self.path(pid, at.then(|| arg(1)), if at { arg(2) } else { arg(1) });
                if let (Some(path), Some(target)) = (path, quoted(arg(0))) {
                    self.builder.symlink(&path, target);
                }
            }
            // Calls that name nothing here, or ask nothing of the file system.
            "chdir" | "fchdir" | "getcwd" | "lseek" | "getdents64" | "getdents" | "dup" | "dup2" | "dup3"
            | "execve" => {}
            _ => {
                let dir = if at { Some(arg(0)) } else { None };
                if self.is_here(pid, arg(0)) || self.path(pid, dir, arg(first)).is_some() {
                    self.builder.leave_out(call.name);
                }
            }
        }
    }

    pub(super) fn stat(&mut self, pid: u32, dir: Option<&str>, path: &str, told: &str, failed: bool) {
        let Some(path) = self.path(pid, dir, path) else { return };
        if !failed {
            let size = field(told, "st_size").or_else(|| field(told, "stx_size"));
            match field(told, "st_mode").or_else(|| field(told, "stx_mode")) {
                Some(mode) if mode.contains("S_IFDIR") => self.builder.is_dir(&path),
                // The replay looks at the target of a link.
                Some(mode) if mode.contains("S_IFLNK") => {
                    return self.builder.leave_out("stat of a symbolic link");
                }
                _ => self.builder.exists(&path, size.and_then(|size| size.parse().ok())),
            }
        }
        self.builder.add(failed, What::Stat { path });
    }
}
