//! `nacre demo`: shows the file system at work, kills it in the middle, and proves that nothing was lost.
//!
//! - [`machine`]: the emulated PM, the mount and its process, and the cleanup in all cases.
//! - [`tree`]: a real source tree, copied, archived and compared by checksum.
//! - [`database`]: SQLite in WAL mode, with a record of acknowledged rows.
//! - [`speed`]: the table of operations per second.

mod database;
mod machine;
mod speed;
mod tree;

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use nacre_engine::size;

use crate::failure::Failure;
use crate::load::{self, Load, Plan};
use crate::output;
use database::Database;
use machine::Machine;
use tree::Tree;

/// The time of the load before the kill, in seconds.
const LOAD_SECONDS: u32 = 4;
/// Threads of the fsync-heavy load.
const WORKERS: usize = 3;

/// Examples and exit codes, for the help and the manual page.
const MANUAL: &str = "\
Examples:
  nacre demo --size 2G --emulate pcm
      Works on 2 GiB of emulated PM that is as slow as PCM.
";

/// Arguments of `nacre demo`.
#[derive(Debug, Args)]
#[command(after_long_help = MANUAL)]
pub(crate) struct DemoArgs {
    /// The size of the emulated PM
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size::parse)]
    size: u64,
    /// Emulate this kind of PM: pcm, optane, or latency=200,bandwidth=1G; as fast as DRAM by default
    #[arg(long, value_name = "KIND", value_parser = emulation)]
    emulate: Option<String>,
    /// The source tree to copy; by default one that is found, or generated
    #[arg(long, value_name = "DIR")]
    tree: Option<PathBuf>,
}

/// Checks an emulation early, because the mount would refuse a wrong one only after all other steps.
fn emulation(text: &str) -> nacre::Result<String> {
    text.parse::<nacre::Emulation>().map(|_| text.to_owned())
}

/// Runs the whole demonstration.
pub(crate) fn run(args: &DemoArgs) -> Result<(), Failure> {
    let started = Instant::now();
    let mut say = Narrator { step: 0 };
    let emulation =
        args.emulate.as_deref().map_or_else(String::new, |name| format!(", slowed down to {name}"));

    say.step(&format!("Make {} of emulated PM: a file in DRAM{emulation}", size::print(args.size)))?;
    let mut machine = Machine::new(args.size, args.emulate.clone())?;
    say.line(&format!("a file system on {}", machine.image().display()))?;

    say.step("Mount it")?;
    let took = machine.mount()?;
    say.line(&format!("on {}, usable after {}", machine.dir().display(), seconds(took)))?;

    say.step("Copy a source tree, and archive it")?;
    let tree = Tree::choose(args.tree.as_deref(), args.size / 4)?;
    let copied = tree.copy_to(&machine.dir().join("tree"), &mut |text| say.line(text))?;
    let archive = tree::archive(&machine.dir())?;
    say.line(&archive.to_string())?;

    say.step("Work that syncs: a log with fsync, files replaced and renamed, SQLite in WAL mode")?;
    let plan = Plan {
        dir: machine.dir().join("load"),
        ledgers: machine.beside().to_owned(),
        workers: WORKERS,
        seed: 1,
        sync: true,
        in_place: false,
    };
    let load =
        Load::start(&plan).map_err(|error| Failure::new("start the load", plan.dir.display(), error))?;
    let mut database = Database::start(&machine.dir())?;
    for second in 1..=LOAD_SECONDS {
        thread::sleep(Duration::from_secs(1));
        say.line(&format!("second {second}: {} operations acknowledged", load.acknowledged()))?;
    }

    say.step("Kill the file system's process with SIGKILL, in the middle of it")?;
    machine.kill()?;
    let (operations, _) = load.stop();
    let rows = database.as_mut().map_or(0, Database::acknowledged);
    say.line(&format!(
        "until then {operations} operations and {rows} transactions of SQLite were acknowledged"
    ))?;

    say.step("Mount it again")?;
    let took = machine.mount()?;
    say.line(&format!("recovered and usable after {}", seconds(took)))?;

    say.step("Verify every acknowledged byte by checksum")?;
    let checked = load::check(&plan).map_err(|text| Failure::new("verify", plan.dir.display(), text))?;
    let (files, bytes) = copied.verify(&machine.dir().join("tree"))?;
    say.line(&format!("the source tree: {files} files, {}, all as copied", size::print(bytes)))?;
    archive.verify()?;
    say.line("the archive: as written")?;
    say.line(&format!(
        "the load: {} operations, {} names, {}, all as acknowledged ({} in flight had happened, {} had not)",
        checked.acknowledged,
        checked.names,
        size::print(checked.bytes),
        checked.kept,
        checked.lost,
    ))?;
    match database {
        Some(database) => say.line(&database.verify()?)?,
        None => say.line("SQLite: left out, the program sqlite3 is not installed")?,
    }

    say.step("Operations per second, one thread: this mount, tmpfs, and this machine's own disk")?;
    output::text_out(&speed::table(&machine.dir())?)?;

    machine.unmount()?;
    output::text_out(&format!(
        "\nDone in {}; unmounted, and nothing is left behind.\n",
        seconds(started.elapsed())
    ))
}

fn seconds(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}

/// Prints the steps.
struct Narrator {
    step: u32,
}

impl Narrator {
    fn step(&mut self, text: &str) -> Result<(), Failure> {
        self.step += 1;
        output::text_out(&format!("{}. {text}\n", self.step))
    }

    fn line(&self, text: &str) -> Result<(), Failure> {
        output::text_out(&format!("   {text}\n"))
    }
}
