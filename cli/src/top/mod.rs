//! `nacre top`: the activity of a mounted file system, refreshed periodically.
//!
//! - `snapshot`: the state of the mount at one time.
//! - `draw`: the picture of it.

mod draw;
mod snapshot;

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Args;
use nacre_control::Question;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::{cursor, execute, terminal};
use serde_json::json;

use self::snapshot::Snapshot;
use crate::daemon::Signals;
use crate::failure::Failure;
use crate::names::Names;
use crate::{mounted, output};

/// The attribute with the access statistics of a mount's files.
const TEMPERATURE: &str = Question::Temperature.attribute();
/// The interval between snapshots, in seconds: the default, the least, and the most.
const INTERVAL: f64 = 1.0;
const SHORTEST: f64 = 0.1;
const LONGEST: f64 = 86_400.0;
/// The time that a signal waits for a drawing in progress. A terminal that takes no output must not delay it longer.
const PATIENCE: Duration = Duration::from_secs(1);

/// Examples and exit codes, for the help and the manual page.
const MANUAL: &str = "\
Examples:
  nacre top /mnt
      Shows the mount live.
  nacre top --json --interval 10 --count 6 /mnt
      Prints a line of JSON every ten seconds, for a minute.

See also:
  nacre-mover-status(8), nacre-info(8)
";

/// Arguments of `nacre top`.
#[derive(Debug, Args)]
#[command(after_long_help = MANUAL)]
pub(crate) struct TopArgs {
    /// Print one snapshot as text; also the default if standard output is no terminal
    #[arg(long)]
    once: bool,
    /// Print one snapshot as JSON; with --interval or --count a line for each
    #[arg(long, conflicts_with = "once")]
    json: bool,
    /// Seconds between snapshots, as 0.5; 1 by default
    #[arg(long, value_name = "SECONDS", value_parser = seconds, conflicts_with = "once")]
    interval: Option<Duration>,
    /// End after this number of snapshots
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "once")]
    count: Option<u64>,
    /// A file or directory on the mounted file system, or its device
    #[arg(value_name = "DIR|DEVICE")]
    path: PathBuf,
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (SHORTEST..=LONGEST).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(format!("{text:?} is not between {SHORTEST} and {LONGEST} seconds")),
    }
}

/// Shows a mount until the user ends it, the mount ends, or the count is reached.
pub(crate) fn run(args: &TopArgs) -> Result<(), Failure> {
    let mount = mounted::mountpoint("top", &args.path)?;
    let interval = args.interval.unwrap_or(Duration::from_secs_f64(INTERVAL));
    if args.json && args.interval.is_none() && args.count.is_none() {
        return output::json(json!(look(&mount, &mut Names::of(&mount))?));
    }
    if args.json || args.once || !io::stdout().is_terminal() {
        return print(args, &mount, interval);
    }
    let shown = Screen::begin().and_then(|mut screen| screen.show(&mount, interval, args.count));
    shown.map_err(|failure| match failure {
        Ended::Terminal(error) => Failure::new("top", "the terminal", error),
        Ended::Mount(failure) => failure,
    })
}

/// Prints lines of JSON, or text, to be read later.
fn print(args: &TopArgs, mount: &Path, interval: Duration) -> Result<(), Failure> {
    let endless = if args.interval.is_some() { u64::MAX } else { 1 };
    let count = args.count.unwrap_or(endless);
    let (mut previous, mut names) = (None, Names::of(mount));
    for number in 0..count {
        if number > 0 {
            thread::sleep(interval);
        }
        let now = look(mount, &mut names)?;
        let text = if args.json {
            output::json_line(json!(now))
        } else {
            let between = if number > 0 { "\n" } else { "" };
            format!("{between}{}", draw::text(previous.as_ref(), &now))
        };
        if !output::text_is_read(&text)? {
            break;
        }
        previous = Some(now);
    }
    Ok(())
}

/// Takes a snapshot of a mount. An error means that the mount is gone or does not answer.
fn look(mount: &Path, names: &mut Names) -> Result<Snapshot, Failure> {
    let gone = || Failure::new("top", mount.display(), "it is not mounted any more");
    // A notice would spoil the picture.
    let info = mounted::ask_silently("top", mount, Question::Info.attribute())
        .map_err(|failure| explain(mount, failure))?
        .ok_or_else(gone)?;
    let temperature = mounted::ask_silently("top", mount, TEMPERATURE)
        .map_err(|failure| explain(mount, failure))?
        .ok_or_else(gone)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut snapshot = Snapshot::of(&mount.display().to_string(), now.as_millis() as u64, info, temperature);
    snapshot.name_files(names);
    Ok(snapshot)
}

/// The failure of a query, with a gone mount told apart.
fn explain(mount: &Path, failure: Failure) -> Failure {
    match mounted::all() {
        Ok(mounts) if mounts.iter().all(|other| other.mountpoint != mount) => {
            Failure::new("top", mount.display(), "it is not mounted any more")
        }
        _ => failure,
    }
}

/// The reason for the end of the display.
enum Ended {
    Terminal(io::Error),
    Mount(Failure),
}

/// The terminal. Its former state returns when this is dropped, or when a signal ends the process.
struct Screen {
    terminal: DefaultTerminal,
    /// Locked during a drawing. True while the terminal is in use by the display.
    is_ours: Arc<Mutex<bool>>,
}

impl Screen {
    fn begin() -> Result<Screen, Ended> {
        // Before any thread exists: they inherit it.
        let signals = Signals::hold_back();
        // If a later step fails, the changes so far are undone.
        let terminal = ratatui::try_init().inspect_err(|_| put_back()).map_err(Ended::Terminal)?;
        let screen = Screen { terminal, is_ours: Arc::new(Mutex::new(true)) };
        let is_ours = Arc::clone(&screen.is_ours);
        let end = move || end_at(&signals, &is_ours);
        thread::Builder::new().name("signals".to_owned()).spawn(end).map_err(Ended::Terminal)?;
        Ok(screen)
    }

    fn show(&mut self, mount: &Path, interval: Duration, count: Option<u64>) -> Result<(), Ended> {
        let (mut previous, mut names): (Option<Snapshot>, _) = (None, Names::of(mount));
        let mut number = 0;
        loop {
            let now = look(mount, &mut names).map_err(Ended::Mount)?;
            self.draw(previous.as_ref(), &now)?;
            number += 1;
            if count.is_some_and(|count| number >= count) || !self.wait(interval, previous.as_ref(), &now)? {
                return Ok(());
            }
            previous = Some(now);
        }
    }

    fn draw(&mut self, previous: Option<&Snapshot>, now: &Snapshot) -> Result<(), Ended> {
        let _drawing = lock(&self.is_ours);
        self.terminal.draw(|frame| draw::draw(frame, previous, now)).map(drop).map_err(Ended::Terminal)
    }

    /// Waits for the next snapshot, or a key that requests it; false if a key ends the display.
    fn wait(
        &mut self,
        interval: Duration,
        previous: Option<&Snapshot>,
        now: &Snapshot,
    ) -> Result<bool, Ended> {
        let until = Instant::now() + interval;
        while event::poll(until.saturating_duration_since(Instant::now())).map_err(Ended::Terminal)? {
            match event::read().map_err(Ended::Terminal)? {
                Event::Key(key) => match meaning(key) {
                    Some(Key::End) => return Ok(false),
                    Some(Key::Look) => return Ok(true),
                    None => {}
                },
                Event::Resize(..) => self.draw(previous, now)?,
                _ => {}
            }
        }
        Ok(true)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let mut is_ours = lock(&self.is_ours);
        put_back();
        *is_ours = false;
    }
}

/// Waits for a signal that ends the process, and restores the terminal first.
fn end_at(signals: &Signals, is_ours: &Mutex<bool>) {
    let signal = signals.wait();
    let until = Instant::now() + PATIENCE;
    let is_ours = loop {
        match is_ours.try_lock() {
            // No drawing starts from here to the end.
            Ok(is_ours) => break Some(is_ours),
            Err(TryLockError::Poisoned(poisoned)) => break Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if Instant::now() >= until => break None,
            Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(10)),
        }
    };
    match &is_ours {
        Some(is_ours) if **is_ours => put_back(),
        Some(_) => {}
        // A terminal that takes no output can still leave raw mode.
        None => drop(terminal::disable_raw_mode()),
    }
    signals.end_by(signal)
}

/// Restores the terminal. Errors are ignored, because a terminal that is gone needs no restoring.
fn put_back() {
    let _ = ratatui::try_restore();
    let _ = execute!(io::stdout(), cursor::Show);
}

fn lock(is_ours: &Mutex<bool>) -> MutexGuard<'_, bool> {
    is_ours.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The action of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Key {
    End,
    Look,
}

fn meaning(key: KeyEvent) -> Option<Key> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => Some(Key::End),
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Some(Key::End),
        KeyCode::Char(' ') => Some(Key::Look),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

    use super::{Key, meaning, seconds};

    #[test]
    fn keys_end_it_or_ask_for_a_look() {
        let key = |code, modifiers| meaning(KeyEvent::new(code, modifiers));
        for (code, modifiers, expected) in [
            (KeyCode::Char('q'), KeyModifiers::NONE, Some(Key::End)),
            (KeyCode::Esc, KeyModifiers::NONE, Some(Key::End)),
            (KeyCode::Char('c'), KeyModifiers::CONTROL, Some(Key::End)),
            (KeyCode::Char('c'), KeyModifiers::NONE, None),
            (KeyCode::Char(' '), KeyModifiers::NONE, Some(Key::Look)),
        ] {
            assert_eq!(key(code, modifiers), expected, "{code:?}");
        }
    }

    #[test]
    fn an_interval_is_bounded() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "-1", "NaN", "1e9", "soon"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
