//! Work in a process of its own: servers of mounts, processes to be killed, and work to be measured alone.
//!
//! The program runs itself with a role. A child says `ready` (and its findings, as words behind it) on standard
//! output, and stays until its standard input ends.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::figures::context::Outcome;
use crate::figures::{mount, recovery};
use crate::nacre_program;
use crate::workload::program::child::tie;

/// The word that says that a child is ready.
const READY: &str = "ready";

/// A running child. It is killed when this value goes away.
pub(crate) struct Helper {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Helper {
    /// Starts this program in a role and waits until it is ready; gives the words that it said.
    pub(crate) fn start(role: &str, args: &[&str]) -> Result<(Helper, Vec<u64>), Box<dyn std::error::Error>> {
        let mut command = Command::new(nacre_program()?);
        tie(&mut command, libc::SIGKILL);
        let mut child = command
            .args(["bench", "figures", "--role", role])
            .args(args.iter().flat_map(|arg| ["--with", arg]))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = BufReader::new(child.stdout.take().ok_or("no output")?);
        let mut helper = Helper { child, output };
        let mut line = String::new();
        helper.output.read_line(&mut line)?;
        match line.trim_end().strip_prefix(READY) {
            Some(words) => {
                Ok((helper, words.split_whitespace().map_while(|word| word.parse().ok()).collect()))
            }
            None => Err(format!("the child for {role} ended").into()),
        }
    }

    /// Its process number.
    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// Ends it with SIGKILL.
    pub(crate) fn kill(mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop)
    }

    /// Lets it end by itself.
    pub(crate) fn finish(mut self) -> Outcome {
        drop(self.child.stdin.take());
        let status = self.child.wait()?;
        if status.success() { Ok(()) } else { Err(format!("a child ended with {status}").into()) }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // Of one that was waited for nothing is left to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The line of a child that is ready.
pub(crate) fn say_ready(words: &[u64]) {
    let words: String = words.iter().map(|word| format!(" {word}")).collect();
    let mut out = io::stdout().lock();
    // A parent that does not listen any more will end us.
    let _ = writeln!(out, "{READY}{words}").and_then(|()| out.flush());
}

/// Waits until standard input ends.
pub(crate) fn wait_for_end() {
    let _ = io::stdin().lock().read_to_end(&mut Vec::new());
}

/// Runs a role.
pub(crate) fn run(role: &str, with: &[String]) -> Outcome {
    let number = |at: usize| -> Result<u64, Box<dyn std::error::Error>> {
        Ok(with.get(at).ok_or("an argument is missing")?.parse()?)
    };
    let path = |at: usize| with.get(at).map(Path::new).ok_or("an argument is missing");
    match role {
        "serve" => mount::serve(path(0)?, path(1)?),
        "serve-empty" => mount::serve_empty(path(0)?, number(1)?),
        "populate" => recovery::populate(path(0)?, number(1)?, number(2)?, number(3)?),
        "touch" => recovery::touch(path(0)?),
        "index" => recovery::index(path(0)?, number(1)?, number(2)?),
        _ => Err(format!("{role} is no role").into()),
    }
}
