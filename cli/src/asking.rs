//! Calls that may never return: questions to a mount whose server hangs or is stopped.
//!
//! Once a server has taken a request, nothing interrupts the call, not even the end of the process. A thread in such a
//! call keeps its process from ending. So a child makes the call, and is left behind when the call takes too long.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::time::{Duration, Instant};

use nacre_control::ANSWER_MAX;
use rustix::io::Errno;

/// The time after which the user learns the reason for the wait.
pub(crate) const NOTICE: Duration = Duration::from_secs(1);

/// The outcome of a call.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The bytes of the answer.
    Bytes(Vec<u8>),
    /// The error of the call.
    Refused(Errno),
    /// The call has not returned in time.
    None,
}

/// A call in progress.
pub(crate) struct Asked {
    pipe: File,
    child: libc::pid_t,
    begun: Instant,
}

impl Asked {
    /// Begins a call in a child. The call fills the buffer, returns the length, and makes system calls only. Other
    /// threads of this process may hold locks, such as that of the allocator, and nothing in the child ever releases
    /// them.
    pub(crate) fn begin(call: impl FnOnce(&mut [u8]) -> Result<usize, Errno>) -> io::Result<Asked> {
        let mut buffer = vec![0; ANSWER_MAX];
        let mut ends = [0; 2];
        // SAFETY: the array has room for both descriptors.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: both descriptors are new and belong to nothing else.
        let (pipe, write) = unsafe { (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1])) };
        // SAFETY: the child makes system calls only, as the caller guarantees for its part, and ends without unwinding.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => answer(write.as_raw_fd(), &mut buffer, call),
            child => Ok(Asked { pipe, child, begun: Instant::now() }),
        }
    }

    /// Waits for the end of the call, until `limit` after its begin. Calls `notice` once if that takes a second.
    pub(crate) fn wait(mut self, limit: Duration, notice: impl FnOnce()) -> Answer {
        let mut notice = Some(notice);
        let mut said = Vec::new();
        loop {
            let until = if notice.is_some() { limit.min(NOTICE) } else { limit };
            if !is_readable(self.pipe.as_raw_fd(), until.saturating_sub(self.begun.elapsed())) {
                let waited = self.begun.elapsed();
                if waited >= limit {
                    break;
                }
                if waited >= NOTICE
                    && let Some(notice) = notice.take()
                {
                    notice();
                }
                continue;
            }
            let mut part = [0; 4096];
            match self.pipe.read(&mut part) {
                Ok(0) => {
                    // SAFETY: the child is ours to wait for, and ends now.
                    unsafe { libc::waitpid(self.child, std::ptr::null_mut(), 0) };
                    return decode(&said);
                }
                Ok(count) => said.extend_from_slice(&part[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        // SAFETY: both take numbers only. A child that cannot end now goes to init when this process ends.
        unsafe {
            libc::kill(self.child, libc::SIGKILL);
            libc::waitpid(self.child, std::ptr::null_mut(), libc::WNOHANG);
        }
        Answer::None
    }
}

/// Makes a call that may never return, and waits for its end for `limit` at most.
pub(crate) fn ask(
    limit: Duration,
    notice: impl FnOnce(),
    call: impl FnOnce(&mut [u8]) -> Result<usize, Errno>,
) -> Answer {
    match Asked::begin(call) {
        Ok(asked) => asked.wait(limit, notice),
        Err(error) => Answer::Refused(Errno::from_io_error(&error).unwrap_or(Errno::AGAIN)),
    }
}

/// Decodes the report of the child: an error number and bytes.
fn decode(said: &[u8]) -> Answer {
    match said.split_first_chunk() {
        Some((number, bytes)) => match i32::from_ne_bytes(*number) {
            0 => Answer::Bytes(bytes.to_vec()),
            number => Answer::Refused(Errno::from_raw_os_error(number)),
        },
        // The child was killed.
        None => Answer::None,
    }
}

fn is_readable(descriptor: RawFd, limit: Duration) -> bool {
    let mut poll = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
    let limit = limit.as_millis().min(60_000) as libc::c_int + 1;
    // SAFETY: one entry, which is ours.
    unsafe { libc::poll(&raw mut poll, 1, limit) > 0 }
}

/// The child: makes the call, reports the result, and ends. It closes all other descriptors first, so that no process
/// waits for the end of a pipe that it holds.
fn answer(pipe: RawFd, buffer: &mut [u8], call: impl FnOnce(&mut [u8]) -> Result<usize, Errno>) -> ! {
    struct End;
    impl Drop for End {
        fn drop(&mut self) {
            // SAFETY: it ends this process, and runs nothing of the parent's.
            unsafe { libc::_exit(0) }
        }
    }
    let _end = End;
    // SAFETY: numbers only; this process uses none of the closed descriptors any more.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::syscall(libc::SYS_close_range, 0, pipe - 1, 0);
        libc::syscall(libc::SYS_close_range, pipe + 1, libc::c_int::MAX, 0);
    }
    let (number, length) = match call(buffer) {
        Ok(length) => (0, length.min(buffer.len())),
        Err(error) => (error.raw_os_error(), 0),
    };
    let number = number.to_ne_bytes();
    for mut part in [&number[..], &buffer[..length]] {
        while !part.is_empty() {
            // SAFETY: the part is readable for its length.
            let written = unsafe { libc::write(pipe, part.as_ptr().cast(), part.len()) };
            match usize::try_from(written) {
                Ok(written) if written > 0 => part = part.get(written..).unwrap_or_default(),
                _ => break,
            }
        }
    }
    // SAFETY: it ends this process, and runs nothing of the parent's.
    unsafe { libc::_exit(0) }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use rustix::io::Errno;

    use super::{ANSWER_MAX, Answer, Asked, ask};

    const LONG: Duration = Duration::from_secs(120);

    #[test]
    fn an_answer_comes_back_whole() {
        let full = ask(
            LONG,
            || {},
            |buffer| {
                buffer.fill(7);
                Ok(buffer.len())
            },
        );
        assert_eq!(full, Answer::Bytes(vec![7; ANSWER_MAX]));
        assert_eq!(ask(LONG, || {}, |_| Ok(0)), Answer::Bytes(Vec::new()));
        assert_eq!(ask(LONG, || {}, |_| Err(Errno::NODATA)), Answer::Refused(Errno::NODATA));
    }

    /// One that is looked at late, after others were waited for, was taken for one that hangs.
    #[test]
    fn an_answer_that_is_there_counts_however_late_it_is_looked_at() {
        let asked = Asked::begin(|_| Ok(3)).unwrap();
        while !super::is_readable(std::os::fd::AsRawFd::as_raw_fd(&asked.pipe), LONG) {}
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(asked.wait(Duration::from_millis(10), || {}), Answer::Bytes(vec![0; 3]));
    }

    #[test]
    fn what_never_returns_is_left_behind_and_told() {
        let told = Cell::new(0);
        let forever = |_: &mut [u8]| loop {
            // SAFETY: it waits for a signal, and takes nothing.
            unsafe { libc::pause() };
        };
        assert_eq!(ask(Duration::from_millis(1200), || told.set(told.get() + 1), forever), Answer::None);
        assert_eq!(told.get(), 1);
        let killed = |_: &mut [u8]| {
            // SAFETY: numbers only.
            unsafe { libc::raise(libc::SIGKILL) };
            Ok(1)
        };
        assert_eq!(ask(LONG, || {}, killed), Answer::None);
    }
}
