//! A process in the background. It leaves the terminal before it has threads, locks or mappings. It reports through a
//! pipe that it is ready, or why it failed. It ends at a signal.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nacre_engine::without_number;
use rustix::fs::Access;

use crate::failure::Failure;
use crate::heap::SETTINGS;
use crate::notice;

/// `PR_SET_IO_FLUSHER` of prctl(2).
const IO_FLUSHER: libc::c_int = 57;

/// The settings of glibc in the environment.
const TUNABLES: &str = "GLIBC_TUNABLES";

/// Restarts this program with the heap settings of a server, because glibc reads them at the start only. Continues
/// without them if the restart is impossible or the user has set them.
///
/// To be called while the process has no state to lose.
pub(crate) fn begin_anew() {
    let set = std::env::var(TUNABLES).unwrap_or_default();
    let ours: Vec<String> = SETTINGS
        .iter()
        .filter(|(name, _)| !set.contains(name))
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    if !cfg!(target_env = "gnu") || ours.is_empty() {
        return;
    }
    let Ok(program) = std::env::current_exe() else { return };
    let mut arguments = std::env::args_os();
    let mut command = Command::new(program);
    command.arg0(arguments.next().unwrap_or_default()).args(arguments);
    let ours = ours.join(":");
    let both = if set.is_empty() { ours } else { format!("{set}:{ours}") };
    // It returns only when it failed.
    let _ = command.env(TUNABLES, both).exec();
}

/// The process that continues after the division.
pub(crate) enum Role {
    /// The caller's process: ends with this code, after the background process is ready or has failed.
    Parent(ExitCode),
    /// The background process.
    Child(Readiness),
}

/// The end of the pipe on which the background process reports its outcome.
pub(crate) struct Readiness {
    pipe: Option<File>,
    warnings: Warnings,
}

/// Messages for the process that waits for the one in the background. They go to standard error together with the
/// outcome. After the outcome no process waits for them.
#[derive(Clone, Default)]
pub(crate) struct Warnings(Arc<Mutex<Option<Vec<u8>>>>);

impl Warnings {
    /// Adds one.
    pub(crate) fn say(&self, message: &str) {
        if let Ok(mut lines) = self.0.lock()
            && let Some(lines) = &mut *lines
        {
            lines.extend_from_slice(format!("nacre: {message}\n").as_bytes());
        }
    }

    fn take(&self) -> Vec<u8> {
        self.0.lock().ok().and_then(|mut lines| lines.take()).unwrap_or_default()
    }
}

/// Divides the process. The child works in `/`. Until [`Readiness::ready`] the child keeps the caller's session,
/// terminal and standard error. An automounter that waits for the mount needs this: it lets the caller's processes
/// pass, and knows them by their process group.
///
/// To be called while the process has one thread, and no lock or mapping that a child must not share.
pub(crate) fn to_background() -> Result<Role, Failure> {
    let failed = |what: &str| Failure::new("go to the background", what, io::Error::last_os_error());
    let mut ends = [0; 2];
    // SAFETY: the array has room for both descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(failed("pipe"));
    }
    // SAFETY: both descriptors are new and have no other owner.
    let (read, write) = unsafe { (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1])) };
    // SAFETY: the process has one thread, so that the child finds every lock of the C library free.
    match unsafe { libc::fork() } {
        -1 => Err(failed("fork")),
        0 => {
            drop(read);
            // SAFETY: chdir takes a string that ends with NUL.
            unsafe { libc::chdir(c"/".as_ptr()) };
            let warnings = Warnings(Arc::new(Mutex::new(Some(Vec::new()))));
            Ok(Role::Child(Readiness { pipe: Some(write), warnings }))
        }
        child => {
            drop(write);
            Ok(Role::Parent(outcome(read, child)))
        }
    }
}

/// Waits for the report of the child: a byte that is its exit code, its warnings, and for a failure the message.
fn outcome(mut pipe: File, child: libc::pid_t) -> ExitCode {
    let mut said = Vec::new();
    let _ = pipe.read_to_end(&mut said);
    match said.split_first() {
        Some((code, message)) => {
            let _ = io::stderr().write_all(message);
            ExitCode::from(*code)
        }
        None => {
            let mut status = 0;
            // SAFETY: the status is ours to write; the child is ours to wait for.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            notice::say(format_args!("mount: the server ended before it was ready ({})", ending(status)));
            ExitCode::from(MOUNT_INTERNAL)
        }
    }
}

/// A bug, in the exit codes of mount(8).
const MOUNT_INTERNAL: u8 = 4;

fn ending(status: libc::c_int) -> String {
    if libc::WIFSIGNALED(status) {
        format!("signal {}", libc::WTERMSIG(status))
    } else {
        format!("exit code {}", libc::WEXITSTATUS(status))
    }
}

impl Readiness {
    /// The report of a process in the foreground: its messages go to standard error directly.
    pub(crate) fn in_foreground() -> Readiness {
        Readiness { pipe: None, warnings: Warnings::default() }
    }

    /// The warnings that are reported with the outcome.
    pub(crate) fn warnings(&self) -> Warnings {
        self.warnings.clone()
    }

    /// True if this process is in the background.
    pub(crate) fn in_background(&self) -> bool {
        self.pipe.is_some()
    }

    /// Reports that the mount can be used, and leaves the terminal. An error means that the caller is gone and the
    /// result is not wanted.
    pub(crate) fn ready(&mut self) -> io::Result<()> {
        let Some(mut pipe) = self.pipe.take() else { return Ok(()) };
        // SAFETY: setsid takes nothing. It cannot fail in a process that leads no group.
        unsafe { libc::setsid() };
        leave_terminal()?;
        let mut said = vec![0];
        said.extend(self.warnings.take());
        pipe.write_all(&said)
    }

    /// Reports a failure, unless the process was ready before. Returns the exit code of this process.
    pub(crate) fn fail(&mut self, message: &str, code: u8) -> ExitCode {
        let line = format!("nacre: {}\n", without_number(message.to_owned()));
        match self.pipe.take() {
            Some(mut pipe) => {
                let mut said = vec![code];
                said.extend(self.warnings.take());
                said.extend_from_slice(line.as_bytes());
                let _ = pipe.write_all(&said);
            }
            None => drop(io::stderr().write_all(line.as_bytes())),
        }
        ExitCode::from(code)
    }
}

/// Puts /dev/null in the place of the standard descriptors.
fn leave_terminal() -> io::Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    for standard in 0..=2 {
        // SAFETY: both are descriptors; no other owner uses the old standard one.
        if unsafe { libc::dup2(null.as_raw_fd(), standard) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// The log of a running process.
#[derive(Clone)]
pub(crate) enum Log {
    /// Standard error.
    Terminal,
    /// A file, with one line for each message.
    File(Arc<Mutex<File>>),
    /// The system's log.
    System,
}

impl Log {
    /// The log of a process: its file if there is one, otherwise the terminal or, in the background, the system's log.
    /// An error means that the file cannot be opened.
    pub(crate) fn new(file: Option<&Path>, in_background: bool) -> io::Result<Log> {
        Ok(match file {
            Some(path) => {
                let file = File::options().append(true).create(true).open(path)?;
                Log::File(Arc::new(Mutex::new(file)))
            }
            None if in_background => Log::System,
            None => Log::Terminal,
        })
    }

    /// The error that a log in this file would give. No file is made.
    pub(crate) fn would_open(path: &Path) -> io::Result<()> {
        match File::options().append(true).open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let dir = path.parent().unwrap_or(path);
                Ok(rustix::fs::access(dir, Access::WRITE_OK | Access::EXEC_OK)?)
            }
            other => other.map(drop),
        }
    }

    /// Logs a warning.
    pub(crate) fn say(&self, message: &str) {
        self.write(libc::LOG_WARNING, message);
    }

    /// Logs an event that is no error.
    pub(crate) fn tell(&self, message: &str) {
        self.write(libc::LOG_INFO, message);
    }

    fn write(&self, priority: libc::c_int, message: &str) {
        let message = without_number(message.to_owned());
        match self {
            // The reader of standard error may be gone, which is no reason to end either.
            Log::Terminal => drop(writeln!(io::stderr(), "nacre: {message}")),
            Log::File(file) => {
                let line = format!("{} nacre[{}]: {message}\n", timestamp(), std::process::id());
                // A log that cannot be written is no reason to end.
                if let Ok(mut file) = file.lock() {
                    let _ = file.write_all(line.as_bytes());
                }
            }
            Log::System => {
                let text =
                    CString::new(format!("nacre[{}]: {message}", std::process::id()).replace('\0', " "))
                        .unwrap_or_default();
                // SAFETY: the format takes one string, which ends with NUL and lives as long as the call.
                unsafe { libc::syslog(priority | libc::LOG_DAEMON, c"%s".as_ptr(), text.as_ptr()) };
            }
        }
    }
}

/// Messages in a row that are all logged.
const ALARMS_IN_A_ROW: u32 = 20;
/// The pause after which the next message is logged again.
const ALARM_PAUSE: Duration = Duration::from_secs(10);

/// A limit on repeated messages: a failing device causes one for each request.
pub(crate) struct Throttle {
    state: Mutex<(Instant, u32)>,
}

impl Throttle {
    /// A throttle that lets the first messages through.
    pub(crate) fn new() -> Throttle {
        Throttle { state: Mutex::new((Instant::now(), 0)) }
    }

    /// `None` to drop the next message, otherwise whether it is the last one for a while.
    pub(crate) fn next(&self) -> Option<bool> {
        let Ok(mut state) = self.state.lock() else { return None };
        if state.0.elapsed() >= ALARM_PAUSE {
            *state = (Instant::now(), 0);
        }
        state.1 = state.1.saturating_add(1);
        (state.1 <= ALARMS_IN_A_ROW).then_some(state.1 == ALARMS_IN_A_ROW)
    }
}

/// Local time with its zone, in the format of RFC 3339.
fn timestamp() -> String {
    jiff::Zoned::now().strftime("%Y-%m-%dT%H:%M:%S%.3f%:z").to_string()
}

/// Ends the process at the first panic. Data on the device is consistent at every moment, while data in DRAM may not be
/// after a panic. The next mount recovers. If threads ended one by one, the mount would hang.
pub(crate) fn abort_on_panic(log: &Log) {
    let log = log.clone();
    std::panic::set_hook(Box::new(move |panic| {
        log.say(&format!("a bug in nacre, the mount ends here and recovers at the next: {panic}"));
        std::process::abort();
    }));
}

/// Tells the kernel that this process must not wait for its own mount when DRAM is short. The call needs a privilege;
/// without it nothing changes.
pub(crate) fn serve_while_memory_is_short() {
    // SAFETY: prctl with this option takes numbers only.
    unsafe { libc::prctl(IO_FLUSHER, 1, 0, 0, 0) };
}

/// The file with the rank of this process among those that the kernel ends when DRAM is short.
const OOM_SCORE_ADJ: &str = "/proc/self/oom_score_adj";
/// The score at which all other processes are ended first. Not -1000 (never), because this process must end if it is
/// the only one left.
const ENDED_LAST: i32 = -999;

/// The rank of this process among those that the kernel ends when DRAM is short: -1000 is never, 1000 is first.
pub(crate) fn oom_score_adj() -> Option<i32> {
    std::fs::read_to_string(OOM_SCORE_ADJ).ok()?.trim().parse().ok()
}

/// Has the kernel end other processes first when DRAM is short. The pages of a mapped device count in the resident set
/// of this process. So the kernel would end it first, and all other processes would lose their files. A score of -1000
/// (never ended) that the process was started with stays. A lower score needs a privilege.
///
/// Child processes keep the same score until their end. The only child is fusermount3, if this process may not mount.
pub(crate) fn be_ended_last() -> io::Result<()> {
    if oom_score_adj().is_some_and(|now| now <= ENDED_LAST) {
        return Ok(());
    }
    std::fs::write(OOM_SCORE_ADJ, ENDED_LAST.to_string())
}

/// The signals that end the process cleanly.
pub(crate) struct Signals {
    set: libc::sigset_t,
}

impl Signals {
    /// Blocks the signals in this thread and in all threads that it starts.
    pub(crate) fn hold_back() -> Signals {
        let mut set = std::mem::MaybeUninit::uninit();
        // SAFETY: sigemptyset makes the set valid before anything reads it.
        let set = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
                libc::sigaddset(set.as_mut_ptr(), signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
            set.assume_init()
        };
        Signals { set }
    }

    /// Waits for the next signal and returns its name. Acts each time that the period is over.
    pub(crate) fn next(&self, period: Duration, mut act: impl FnMut()) -> &'static str {
        let period = libc::timespec {
            tv_sec: period.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            tv_nsec: period.subsec_nanos().into(),
        };
        loop {
            // SAFETY: the set and the period are valid, and nothing else about the signal is asked for.
            match unsafe { libc::sigtimedwait(&raw const self.set, std::ptr::null_mut(), &raw const period) }
            {
                libc::SIGINT => return "SIGINT",
                libc::SIGHUP => return "SIGHUP",
                libc::SIGTERM => return "SIGTERM",
                _ => act(),
            }
        }
    }

    /// Waits for the next signal and returns its number.
    pub(crate) fn wait(&self) -> libc::c_int {
        let mut signal = 0;
        // SAFETY: the set is valid, and the number is ours to write.
        while unsafe { libc::sigwait(&raw const self.set, &raw mut signal) } != 0 {}
        signal
    }

    /// Ends the process by a signal, as if the signal had not been blocked. The parent process sees which signal it
    /// was.
    pub(crate) fn end_by(&self, signal: libc::c_int) -> ! {
        // SAFETY: the set is valid, and the previous mask is not needed.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const self.set, std::ptr::null_mut());
        }
        // The process has ended, unless a tracer keeps the signal.
        std::process::exit(128 + signal)
    }
}

/// A process that can be waited for, although it is no child of this one.
pub(crate) struct OtherProcess {
    descriptor: OwnedFd,
}

impl OtherProcess {
    /// Opens a process that runs now; `None` if there is none.
    pub(crate) fn open(pid: libc::pid_t) -> Option<OtherProcess> {
        // SAFETY: pidfd_open takes numbers; a result that is no error is a new descriptor.
        unsafe {
            let descriptor = libc::syscall(libc::SYS_pidfd_open, pid, 0);
            (descriptor >= 0).then(|| OtherProcess { descriptor: OwnedFd::from_raw_fd(descriptor as i32) })
        }
    }

    /// Waits for the end of the process; false if that takes longer than `limit`.
    pub(crate) fn wait(&self, limit: Duration) -> bool {
        let mut poll = libc::pollfd { fd: self.descriptor.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let limit = libc::c_int::try_from(limit.as_millis()).unwrap_or(libc::c_int::MAX);
        // SAFETY: one entry, which is ours.
        unsafe { libc::poll(&raw mut poll, 1, limit) > 0 }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use super::{ALARMS_IN_A_ROW, Log, OtherProcess, Throttle};

    #[test]
    fn a_log_file_grows_by_lines() {
        let path = std::env::temp_dir().join(format!("nacre-log-test-{}", std::process::id()));
        let log = Log::new(Some(&path), true).unwrap();
        log.say("one (os error 5)");
        Log::new(Some(&path), true).unwrap().tell("two");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(text.lines().count(), 2);
        assert!(text.lines().next().unwrap().ends_with(": one"), "{text}");
        for line in text.lines() {
            let (time, _) = line.split_once(' ').unwrap();
            let time: jiff::Timestamp = time.parse().unwrap();
            assert!(time.duration_until(jiff::Timestamp::now()).abs().as_secs() < 3600, "{line}");
        }
        assert!(text.ends_with(": two\n"), "{text}");
    }

    #[test]
    fn a_flood_of_messages_is_cut() {
        let throttle = Throttle::new();
        let told: Vec<_> = (0..1000).map_while(|_| throttle.next()).collect();
        assert_eq!(told.len(), ALARMS_IN_A_ROW as usize);
        assert_eq!(told.iter().filter(|last| **last).count(), 1);
        assert_eq!(throttle.next(), None);
    }

    #[test]
    fn the_kernel_says_how_soon_it_ends_this_process() {
        assert!((-1000..=1000).contains(&super::oom_score_adj().unwrap()));
    }

    #[test]
    fn another_process_can_be_waited_for() {
        let mut child = Command::new("sleep").arg("0.2").spawn().unwrap();
        let process = OtherProcess::open(child.id() as i32).unwrap();
        assert!(!process.wait(Duration::ZERO));
        assert!(process.wait(Duration::from_secs(60)));
        child.wait().unwrap();
    }
}
