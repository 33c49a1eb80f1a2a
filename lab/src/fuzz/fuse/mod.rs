//! FUSE requests of any content, over a socket that takes the place of the kernel.
//!
//! The first byte chooses the image (of the log layout, or of the in-place layout under a write buffer) and how it is
//! served. The INIT request follows, and up to [`MAX_REQUESTS`] more (see [`request`]). Each reply must be one that the
//! kernel would take. Afterwards the server ends, the file system is unmounted, and it is sound.

mod reply;
mod request;

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nacre_cache::{CacheFs, CacheOptions, Settings};
use nacre_engine::{Data, Extents, InodeId};
use nacre_fuse::{Control, ServeOptions, serve_connection};
use nacre_vfs::{Vfs, VfsOptions};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair, sockopt,
};

use super::ground::{self, memory};
use super::{Input, inplace};
use request::{Answer, Known, Message};

/// Requests that one input may have.
const MAX_REQUESTS: usize = 64;
/// How long an answer may take. None waits for anything, so this is far more than a busy machine needs.
const PATIENCE: Duration = Duration::from_secs(60);
/// A socket takes messages of about 200 KiB; larger replies are lost.
const MAX_REPLY: usize = 256 << 10;
/// Blocks of the write buffer: so few that writers have to make room.
const BUFFER_BLOCKS: u64 = 16;

/// Knows one attribute, which can be read and set.
struct Answers;

impl Control for Answers {
    fn ask(&self, _: InodeId, name: &str, _: bool) -> Option<nacre_engine::Result<String>> {
        (name == "info").then(|| Ok("{}".to_owned()))
    }

    fn tell(&self, _: InodeId, name: &str, value: &str) -> Option<nacre_engine::Result<()>> {
        let wrong = || nacre_engine::Kind::InvalidInput.into();
        (name == "info").then(|| if value.len().is_multiple_of(2) { Ok(()) } else { Err(wrong()) })
    }

    fn trim(&self, least: u64) -> Option<nacre_engine::Result<u64>> {
        (least > 0).then_some(Ok(least))
    }

    fn label(&self) -> nacre_engine::Result<String> {
        Ok("fuzz".to_owned())
    }
}

/// Serves an image, sends the requests in the bytes, and ends.
///
/// Panics if an answer is missing or has a form that the kernel refuses. Panics if the server calls a sound device
/// damaged, or if the image is not sound at the end.
pub fn any_requests(data: &[u8]) {
    let mut input = Input::new(data);
    let how = input.byte();
    let which = usize::from(how & 1);
    let problems: Vec<String> = if how & 0x80 != 0 {
        let pm = memory(inplace::image(which));
        let layout = inplace::mount(&pm).expect("a sound image");
        let settings = Settings { threads: 0, ..Settings::default() };
        let options =
            CacheOptions { settings, ..CacheOptions::new(BUFFER_BLOCKS * nacre_engine::BLOCK_SIZE) };
        let fs = serve(CacheFs::new(layout, &options).expect("a write buffer"), how, input);
        let (layout, flushed) = fs.unmount();
        flushed.expect("what was accepted is written");
        layout.unmount().expect("a sound file system is unmounted");
        let report = nacre_layout_inplace::check::check(&*pm, false).expect("it was unmounted a moment ago");
        report.problems.iter().map(|problem| format!("{problem:?}")).collect()
    } else {
        let pm = memory(&ground::grounds()[which].image);
        let layout = ground::mount(&pm).expect("a sound image");
        serve(layout, how, input).unmount().expect("a sound file system is unmounted");
        let report = nacre_layout_log::check::check(&*pm, false).expect("it was unmounted a moment ago");
        report.problems.iter().map(|problem| format!("{problem:?}")).collect()
    };
    assert!(problems.is_empty(), "after the requests: {problems:?}");
}

/// Serves a file system until the connection ends, and gives it back.
fn serve<L: Data + Extents + 'static>(layout: L, how: u8, input: Input<'_>) -> L {
    let options = VfsOptions { read_only: how & 0x20 != 0, no_atime: how & 0x40 != 0 };
    let vfs = Arc::new(Vfs::new(layout, options));
    let alarms = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&alarms);
    let options = ServeOptions {
        threads: Some(1),
        allow_other: true,
        writeback: how & 2 != 0,
        direct_io: how & 4 != 0,
        sync: how & 8 != 0,
        alarm: Arc::new(move |error| {
            told.lock().unwrap_or_else(PoisonError::into_inner).push(error.to_string());
        }),
        control: (how & 0x10 != 0).then(|| Arc::new(Answers) as _),
        ..ServeOptions::default()
    };
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a socket");
    let ended = std::thread::scope(|scope| {
        let server = scope.spawn(|| serve_connection(Arc::clone(&vfs), theirs, &options));
        let in_order = Kernel::new(ours).talk(input);
        (in_order, server.join().expect("the server does not panic"))
    });
    if let (End::InOrder, Err(error)) = ended {
        panic!("the server failed: {error}");
    }
    let alarms = std::mem::take(&mut *alarms.lock().unwrap_or_else(PoisonError::into_inner));
    assert!(alarms.is_empty(), "a sound device was called damaged: {alarms:?}");
    Arc::into_inner(vfs).expect("the server is gone").into_layout()
}

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// By DESTROY.
    InOrder,
    /// The server may refuse to begin, or to go on after bytes that are no request.
    Refused,
}

/// The kernel's end of the connection to a server.
struct Kernel {
    socket: OwnedFd,
    known: Known,
    unique: u64,
    buffer: Vec<u8>,
}

impl Kernel {
    fn new(socket: OwnedFd) -> Kernel {
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(PATIENCE)).expect("a timeout");
        Kernel { socket, known: Known::default(), unique: 0, buffer: vec![0; MAX_REPLY] }
    }

    fn talk(mut self, mut input: Input<'_>) -> End {
        let (first, usual) = request::init(&mut input, self.next());
        self.send(&first);
        match self.receive() {
            Some(reply) => assert_eq!(reply::unique(&reply), Some(first.unique), "the answer to INIT"),
            None => assert!(!usual, "the server refused a usual INIT"),
        }
        if !usual {
            // Either result is fine; the rest is for connections that were agreed on.
            return End::Refused;
        }
        for _ in 0..MAX_REQUESTS {
            if input.is_empty() {
                break;
            }
            let unique = self.next();
            let message = request::make(&mut input, &self.known, unique);
            if self.ask(&message) == Answer::Ends {
                return End::Refused;
            }
        }
        let last = Message::plain(request::DESTROY, self.next());
        self.ask(&last);
        assert!(self.receive().is_none(), "the server closes a connection that was destroyed");
        End::InOrder
    }

    fn next(&mut self) -> u64 {
        self.unique += 1;
        self.unique
    }

    fn ask(&mut self, message: &Message) -> Answer {
        self.send(message);
        let answer = message.answer();
        match answer {
            Answer::Never => {}
            Answer::Always => {
                let reply = self.receive().unwrap_or_else(|| panic!("the server ended at {message:?}"));
                self.take(message, &reply);
            }
            // Whether there was one shows when the next request is answered.
            Answer::Perhaps => {
                let after = Message::plain(request::STATFS, self.next());
                self.send(&after);
                let mut reply = self.receive().unwrap_or_else(|| panic!("the server ended at {message:?}"));
                if reply::unique(&reply) == Some(message.unique) {
                    self.take(message, &reply);
                    reply = self.receive().unwrap_or_else(|| panic!("the server ended after {message:?}"));
                }
                self.take(&after, &reply);
            }
            Answer::Ends => {
                assert!(self.receive().is_none(), "the server took {message:?} for a request");
            }
        }
        answer
    }

    fn take(&mut self, message: &Message, reply: &[u8]) {
        if let Err(what) = reply::check(message, reply, &mut self.known) {
            panic!("{what}: {reply:02x?}\nto {message:?}");
        }
    }

    fn send(&self, message: &Message) {
        let sent = send(&self.socket, &message.bytes, SendFlags::NOSIGNAL).expect("the server is there");
        assert_eq!(sent, message.bytes.len(), "a message goes whole");
    }

    /// The next message of the server; `None` when it has ended the connection.
    fn receive(&mut self) -> Option<Vec<u8>> {
        loop {
            match recv(&self.socket, &mut self.buffer[..], RecvFlags::empty()) {
                Ok((_, 0)) => return None,
                Ok((_, len)) => return Some(self.buffer[..len].to_vec()),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::CONNRESET) => return None,
                Err(error) => panic!("no answer: {error}"),
            }
        }
    }
}

/// How often each opcode was answered without an error since the process began; for tests that ask what the inputs
/// reach.
static SUCCEEDED: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];

/// The opcodes that were answered without an error so far.
pub fn succeeded() -> Vec<u32> {
    let done = SUCCEEDED.iter().enumerate().filter(|(_, count)| count.load(Ordering::Relaxed) > 0);
    done.map(|(opcode, _)| opcode as u32).collect()
}

fn note_success(opcode: u32) {
    if let Some(count) = SUCCEEDED.get(opcode as usize) {
        count.fetch_add(1, Ordering::Relaxed);
    }
}
