//! Programs that are run, and that never outlive the thread that runs them.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Error;

/// How long a process may take to end when it was told to.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where a program is in PATH.
pub(super) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|path| path.is_file())
}

/// Has a process get a signal when the thread that starts it ends. Ctrl-C on the terminal is not for it: the process
/// that started it ends it.
pub(crate) fn tie(command: &mut Command, signal: i32) {
    command.process_group(0);
    let parent = std::process::id();
    // SAFETY: between fork and exec the closure makes two system calls and accesses no shared data.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, signal) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            // It ended before that was said.
            if libc::getppid() as u32 != parent {
                return Err(std::io::ErrorKind::Interrupted.into());
            }
            Ok(())
        });
    }
}

/// Runs a program that is to succeed, and gives its standard output and how long it took.
pub(super) fn run(command: &mut Command) -> Result<(String, Duration), Error> {
    let name = name(command);
    tie(command, libc::SIGKILL);
    let begin = Instant::now();
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{name}: {error}"))?;
    let took = begin.elapsed();
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{name}: {}: {}", output.status, last_lines(&said)).into());
    }
    Ok((String::from_utf8_lossy(&output.stdout).into_owned(), took))
}

fn name(command: &Command) -> String {
    let path = Path::new(command.get_program());
    path.file_name().unwrap_or(OsStr::new("")).to_string_lossy().into_owned()
}

/// The end of a program's output: its last lines, without the parts that it overwrote on the terminal.
fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text
        .lines()
        .map(|line| line.rsplit('\r').next().unwrap_or(line).trim())
        .filter(|line| !line.is_empty())
        .collect();
    lines[lines.len().saturating_sub(3)..].join("; ")
}

/// A server. It is told to end when this value goes away, and is gone then.
#[derive(Debug)]
pub(super) struct Server {
    child: Child,
    name: String,
    /// The signal that makes it end cleanly.
    stop: i32,
}

impl Server {
    /// Starts it. `stop` has it end cleanly, `quit` at once; it gets that when this process dies.
    pub(super) fn start(command: &mut Command, stop: i32, quit: i32) -> Result<Server, Error> {
        let name = name(command);
        tie(command, quit);
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{name}: {error}"))?;
        Ok(Server { child, name, stop })
    }

    /// Waits until it is ready. An error says why it ended.
    pub(super) fn wait_until(&mut self, mut ready: impl FnMut() -> Result<bool, Error>) -> Result<(), Error> {
        let begin = Instant::now();
        while !ready()? {
            if let Some(status) = self.child.try_wait()? {
                let mut said = String::new();
                if let Some(mut output) = self.child.stderr.take() {
                    output.read_to_string(&mut said)?;
                }
                return Err(format!("{} ended with {status}: {}", self.name, last_lines(&said)).into());
            }
            if begin.elapsed() > PATIENCE {
                return Err(format!("{} is not ready after a minute", self.name).into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        // Its output is not used from now on; a full pipe would stop it.
        if let Some(mut output) = self.child.stderr.take() {
            std::thread::spawn(move || std::io::copy(&mut output, &mut std::io::sink()));
        }
        Ok(())
    }

    /// Ends it cleanly.
    pub(super) fn stop(mut self) -> Result<(), Error> {
        self.end()
    }

    fn end(&mut self) -> Result<(), Error> {
        if self.child.try_wait()?.is_some() {
            return Ok(());
        }
        // SAFETY: a signal to a child that was not waited for, so that its number is still its own.
        unsafe {
            libc::kill(self.child.id() as i32, self.stop);
        }
        let begin = Instant::now();
        while self.child.try_wait()?.is_none() {
            if begin.elapsed() > PATIENCE {
                self.child.kill()?;
                self.child.wait()?;
                return Err(format!("{} did not end in a minute; it was killed", self.name).into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// All processes that a process started, and those that they started, and so on. Ended ones are not among them.
pub(crate) fn descendants(process: u32) -> Vec<u32> {
    let mut all = Vec::new();
    let mut parents = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let number = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
        if let Some(number) = number
            && let Some(parent) = parent(number)
        {
            parents.push((number, parent));
        }
    }
    let mut next = vec![process];
    while let Some(parent) = next.pop() {
        let children: Vec<u32> =
            parents.iter().filter(|(_, other)| *other == parent).map(|(number, _)| *number).collect();
        next.extend(&children);
        all.extend(children);
    }
    all
}

/// The parent of a process that has not ended.
fn parent(process: u32) -> Option<u32> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name may hold spaces and parentheses; the text after the last one does not.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    (state != "Z" && state != "X").then_some(parent)
}

/// Waits until processes are gone that were told to end, and kills the rest of them.
pub(crate) fn wait_for_end(processes: &[u32]) {
    let begin = Instant::now();
    let patience = PATIENCE / 6;
    while processes.iter().any(|process| parent(*process).is_some()) {
        if begin.elapsed() > patience {
            for process in processes.iter().filter(|process| parent(**process).is_some()) {
                // SAFETY: a signal; the process was a descendant of ours a moment ago.
                unsafe {
                    libc::kill(*process as i32, libc::SIGKILL);
                }
            }
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::{Server, descendants, last_lines, run, wait_for_end};

    #[test]
    fn what_fails_says_why_and_what_takes_long_is_seen() {
        let failed = run(Command::new("sh").args(["-c", "echo 1 >&2; echo no such luck >&2; exit 3"]));
        let why = failed.unwrap_err().to_string();
        assert!(why.contains("sh: exit status: 3: 1; no such luck"), "{why}");
        assert_eq!(last_lines("... finished\r... 7\n\na\nb\nc\n"), "a; b; c");
        assert_eq!(run(Command::new("echo").arg("x")).unwrap().0, "x\n");
    }

    #[test]
    fn a_server_and_its_children_end_with_it() {
        let mut server = Server::start(
            Command::new("sh").args(["-c", "trap 'kill $!; exit' TERM; sleep 600 & wait"]),
            libc::SIGTERM,
            libc::SIGKILL,
        )
        .unwrap();
        let process = server.child.id();
        let mut all = Vec::new();
        server
            .wait_until(|| {
                all = descendants(process);
                Ok(!all.is_empty())
            })
            .unwrap();
        server.stop().unwrap();
        wait_for_end(&all);
        assert!(descendants(std::process::id()).iter().all(|left| *left != process && !all.contains(left)));
    }

    #[test]
    fn a_server_that_ends_at_once_says_why() {
        let mut command = Command::new("sh");
        let mut server =
            Server::start(command.args(["-c", "echo 'no room' >&2; exit 1"]), libc::SIGTERM, libc::SIGKILL)
                .unwrap();
        let why = server.wait_until(|| Ok(false)).unwrap_err().to_string();
        assert!(why.contains("no room"), "{why}");
    }
}
