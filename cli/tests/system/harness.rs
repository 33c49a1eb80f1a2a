//! Grounds to test on: a nacre mount on emulated PM, and tmpfs as the control. Both clean up after themselves.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use nacre_lab::suite::{DirectoryTarget, Need};
use rustix::mount::{MountFlags, UnmountFlags};
use tempfile::TempDir;

/// A preset for each layout; the first one where one is enough.
pub(crate) const PRESETS: [&str; 4] = ["nova", "pmfs", "spfs", "bpfs"];
/// A kind of mount.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) preset: &'static str,
    pub(crate) options: &'static str,
    /// The size of a tier below the memory.
    pub(crate) tier: Option<&'static str>,
}

const fn kind(preset: &'static str, options: &'static str) -> Kind {
    Kind { preset, options, tier: None }
}

/// Mounts that buffer, here or in the kernel. The memory is slower than DRAM, or else writes would go past our buffer; the
/// first three are tried where there is no time for all. Over a tier nearly all that is not O_SYNC goes from the buffer to
/// the disk at once, large or small, aligned or not.
pub(crate) const BUFFERED: [Kind; 10] = [
    kind("hinfs", "buffer=2M,tune=emulate:latency=100"),
    Kind {
        preset: "nacre",
        options: "buffer=2M,tune=emulate:latency=100,tune=disk_threshold:0,tune=large_writes:0,tune=sync_threshold:4K",
        tier: Some("128M"),
    },
    kind("nova", "writeback"),
    kind("nacre", "buffer=2M,tune=emulate:latency=100"),
    Kind { preset: "tpfs", options: "buffer=2M,tune=emulate:latency=100", tier: Some("128M") },
    kind("pmfs", "writeback"),
    kind("hinfs-wb", "buffer=2M,tune=emulate:latency=100"),
    kind("hinfs-nclfw", "buffer=2M,tune=emulate:latency=100"),
    // Layouts without a buffer of their own, which have one on request.
    kind("spfs", "buffer=2M,tune=emulate:latency=100"),
    kind("acbpfs", "buffer=2M,tune=emulate:latency=100"),
];
/// Those of them with our write buffer: the first `usual`, and with `NACRE_ALL_MOUNTS` each.
pub(crate) fn lazy_mounts(usual: usize) -> impl Iterator<Item = Kind> {
    let count = if all_mounts() { BUFFERED.len() } else { usual };
    BUFFERED.into_iter().filter(|kind| kind.options.starts_with("buffer")).take(count)
}

/// True when tests are to run on each kind of mount, as they do at night.
pub(crate) fn all_mounts() -> bool {
    std::env::var_os("NACRE_ALL_MOUNTS").is_some()
}

/// How long a mount may take to become usable, and to go away.
const MOUNT_LIMIT: Duration = Duration::from_secs(60);

/// The command under test.
pub(crate) fn nacre() -> Command {
    Command::new(env!("CARGO_BIN_EXE_nacre"))
}

/// Says that a test did not run, past the capture of the test runner.
pub(crate) fn left_out(what: &str, reason: &str) {
    // A test that is left out still passes; if standard error is gone, nobody can be told.
    let _ = writeln!(io::stderr(), "left out: {what} ({reason})");
}

/// True when this process may mount; else says that the test is left out.
pub(crate) fn can_mount(test: &str) -> bool {
    if !rustix::process::geteuid().is_root() {
        left_out(test, "it needs root");
        return false;
    }
    let fuse = fs::metadata("/dev/fuse").is_ok_and(|found| found.file_type().is_char_device());
    if !fuse {
        left_out(test, "there is no /dev/fuse");
    }
    fuse
}

/// True when a program exists; else says that the test is left out.
pub(crate) fn has_program(test: &str, program: &str) -> bool {
    let found = find_program(program).is_some();
    if !found {
        left_out(test, &format!("the program {program} is not installed"));
    }
    found
}

/// Where a program is: on the path, or in the cache that scripts/install-deps.sh fills.
pub(crate) fn find_program(program: &str) -> Option<PathBuf> {
    let mut places: Vec<PathBuf> =
        std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).collect();
    if let Some(tools) = std::env::var_os("NACRE_TOOLS") {
        places.push(PathBuf::from(tools).join("bin"));
    } else if let Some(home) = std::env::var_os("HOME") {
        places.push(PathBuf::from(home).join(".cache/nacre-tools/bin"));
    }
    places.extend(["/usr/sbin", "/sbin"].map(PathBuf::from));
    places.into_iter().map(|place| place.join(program)).find(|path| path.is_file())
}

/// A program found by [`find_program`], which the test has checked for.
pub(crate) fn program(name: &str) -> Command {
    Command::new(find_program(name).unwrap_or_else(|| panic!("{name} is not installed")))
}

/// Runs a command to its end, kills it when it takes longer than `limit`.
pub(crate) fn run(command: &mut Command, limit: Duration) -> io::Result<Output> {
    let (out, err) = (tempfile::tempfile()?, tempfile::tempfile()?);
    let child = command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(err.try_clone()?).spawn()?;
    let status = wait(child, limit)?;
    Ok(Output { status, stdout: contents(out)?, stderr: contents(err)? })
}

fn contents(mut file: File) -> io::Result<Vec<u8>> {
    use std::io::{Read, Seek};
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Waits for something that comes by itself.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    const LIMIT: Duration = Duration::from_secs(120);
    let end = Instant::now() + LIMIT;
    while !condition() {
        assert!(Instant::now() < end, "{what}: not within {LIMIT:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Waits for a process and kills it when it takes too long.
pub(crate) fn wait(mut child: Child, limit: Duration) -> io::Result<ExitStatus> {
    let end = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if Instant::now() > end {
            child.kill()?;
            child.wait()?;
            return Err(io::Error::new(io::ErrorKind::TimedOut, format!("still running after {limit:?}")));
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Standard output and error of a command that must succeed within `limit`.
pub(crate) fn succeed(command: &mut Command, limit: Duration) -> String {
    let output = run(command, limit).unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = text(&output);
    assert!(output.status.success(), "{command:?}: {}\n{text}", output.status);
    text
}

/// A command that must fail within `limit`, with all of these words.
pub(crate) fn fails(command: &mut Command, words: &[&str], limit: Duration) {
    let output = run(command, limit).unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = text(&output);
    let is_said = words.iter().all(|word| said.contains(word));
    assert!(!output.status.success() && is_said, "{command:?}: {said}");
}

/// Standard output and standard error, one after the other.
pub(crate) fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// What the names of all test directories begin with. scripts/test.sh sets the tag, and clears away by it what a run that
/// was interrupted has left.
fn prefix() -> String {
    format!("nacre-test-{}", std::env::var("NACRE_TEST_TAG").unwrap_or_default())
}

/// A directory of its own for a test, on disk; others may pass through it (tests switch users).
pub(crate) fn scratch() -> TempDir {
    let dir = tempfile::Builder::new().prefix(&prefix()).tempdir().expect("a temporary directory");
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).expect("its permissions");
    dir
}

/// A directory in memory, for images that stand for PM.
pub(crate) fn memory() -> TempDir {
    let place = Path::new("/dev/shm");
    let place = if place.is_dir() { place.to_owned() } else { std::env::temp_dir() };
    tempfile::Builder::new().prefix(&prefix()).tempdir_in(place).expect("a directory in memory")
}

/// A tmpfs to put devices on; it goes with its files.
pub(crate) struct Tmpfs(TempDir);

impl Tmpfs {
    /// One of this size, as `40M`.
    pub(crate) fn new(size: &str) -> Tmpfs {
        let dir = scratch();
        let data = std::ffi::CString::new(format!("size={size}")).expect("no NUL");
        rustix::mount::mount("tmpfs", dir.path(), "tmpfs", MountFlags::empty(), data.as_c_str())
            .expect("tmpfs");
        Tmpfs(dir)
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0.path(), UnmountFlags::DETACH);
    }
}

/// Does something that must be over in a while: a call that hangs is told, and not waited for.
pub(crate) fn bounded<T: Send + 'static>(what: &str, act: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, end) = std::sync::mpsc::channel();
    let worker = thread::spawn(move || {
        let _ = done.send(act());
    });
    match end.recv_timeout(MOUNT_LIMIT) {
        Ok(came) => came,
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("{what}: it hangs"),
        Err(_) => {
            let cause = worker.join().expect_err("it ended without an answer");
            std::panic::resume_unwind(cause)
        }
    }
}

/// A seed for a random test: from NACRE_SEED, else from the clock; printed, so that a failure can be repeated.
pub(crate) fn seed(test: &str) -> u64 {
    let seed = std::env::var("NACRE_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
        now.as_nanos() as u64
    });
    println!("{test}: NACRE_SEED={seed}");
    seed
}

/// A number from the environment, for longer runs at night.
pub(crate) fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Scrubs, and waits until it has ended; gives the exit code and the words of its status.
pub(crate) fn scrubbed(ground: &Ground) -> (i32, String) {
    succeed(nacre().args(["scrub", "start", "--rate", "1G"]).arg(ground.dir()), MOUNT_LIMIT);
    let end = Instant::now() + MOUNT_LIMIT;
    loop {
        let output =
            run(nacre().args(["scrub", "status"]).arg(ground.dir()), MOUNT_LIMIT).expect("scrub status");
        if !text(&output).contains("running;") {
            return (output.status.code().expect("an exit code"), text(&output));
        }
        assert!(Instant::now() < end, "{}", text(&output));
    }
}

/// A mounted file system to test on.
pub(crate) struct Ground {
    name: String,
    in_place: bool,
    tiered: bool,
    scratch: TempDir,
    image: Option<(TempDir, PathBuf)>,
    options: Option<String>,
    daemon: Option<Child>,
}

impl Ground {
    /// A nacre file system of this size (as `256M`), mounted with these options.
    pub(crate) fn nacre(size: &str, options: Option<&str>) -> Ground {
        Ground::preset(PRESETS[0], size, options)
    }

    /// One of this preset.
    pub(crate) fn preset(preset: &str, size: &str, options: Option<&str>) -> Ground {
        Ground::with_tier(preset, size, options, None)
    }

    /// One of this kind, its memory of this size.
    pub(crate) fn of(kind: Kind, size: &str) -> Ground {
        Ground::with_tier(kind.preset, size, Some(kind.options), kind.tier)
    }

    fn with_tier(preset: &str, size: &str, options: Option<&str>, tier: Option<&str>) -> Ground {
        let memory = memory();
        let image = memory.path().join("pm.img");
        let mut mkfs = nacre();
        mkfs.args(["mkfs", "--preset", preset, "--size", size]);
        if let Some(size) = tier {
            // Beside the image, where a mount looks for it.
            mkfs.arg("--tier").arg(format!("{}:{size}", memory.path().join("disk").display()));
        }
        succeed(mkfs.arg(&image), MOUNT_LIMIT);
        let mut mounted = options.map_or_else(String::new, |options| format!(", {options}"));
        if tier.is_some() {
            mounted += ", over a tier";
        }
        let (name, options) = (format!("nacre as {preset}{mounted}"), options.map(str::to_owned));
        let in_place = matches!(preset, "pmfs" | "acbpfs") || preset.starts_with("hinfs");
        let mut ground = Ground {
            name,
            in_place,
            tiered: tier.is_some(),
            scratch: scratch(),
            image: Some((memory, image)),
            options,
            daemon: None,
        };
        fs::create_dir(ground.dir()).expect("the mount point");
        ground.mount();
        ground
    }

    /// A tmpfs of this size, as the control: a test that fails there is wrong itself.
    pub(crate) fn tmpfs(size: &str) -> Ground {
        let name = "tmpfs, the control".to_owned();
        let (scratch, in_place) = (scratch(), false);
        let ground =
            Ground { name, in_place, tiered: false, scratch, image: None, options: None, daemon: None };
        fs::create_dir(ground.dir()).expect("the mount point");
        let data = std::ffi::CString::new(format!("size={size},mode=755")).expect("no NUL");
        rustix::mount::mount("tmpfs", ground.dir(), "tmpfs", MountFlags::empty(), data.as_c_str())
            .expect("mount tmpfs");
        ground
    }

    /// First the control, then each layout of nacre.
    pub(crate) fn each(size: &str) -> impl Iterator<Item = Ground> {
        let control = std::iter::once_with(move || Ground::tmpfs(size));
        control.chain(PRESETS.into_iter().map(move |preset| Ground::preset(preset, size, None)))
    }

    /// The mounts of [`lazy_mounts`].
    pub(crate) fn lazy(size: &str, usual: usize) -> impl Iterator<Item = Ground> {
        lazy_mounts(usual).map(move |kind| Ground::of(kind, size))
    }

    /// What it is, for messages.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// True when it was made over a tier.
    pub(crate) fn has_tier(&self) -> bool {
        self.tiered
    }

    /// False for the control.
    pub(crate) fn is_nacre(&self) -> bool {
        self.image.is_some()
    }

    /// True when what a file has is overwritten in place, where a crash may tear it.
    pub(crate) fn overwrites_in_place(&self) -> bool {
        self.in_place
    }

    /// The mount point.
    pub(crate) fn dir(&self) -> PathBuf {
        self.scratch.path().join("mnt")
    }

    /// A place beside the mount, on another file system, for configurations and ledgers.
    pub(crate) fn beside(&self) -> &Path {
        self.scratch.path()
    }

    /// The image of a nacre file system.
    pub(crate) fn image(&self) -> &Path {
        &self.image.as_ref().expect("only nacre has an image").1
    }

    /// Options of the next mount.
    pub(crate) fn set_options(&mut self, options: Option<&str>) {
        self.options = options.map(str::to_owned);
    }

    /// Mounts it, and waits until it is usable.
    pub(crate) fn mount(&mut self) {
        self.try_mount().unwrap_or_else(|words| panic!("nacre mount: {words}"));
    }

    /// The same, where it may be refused: then with the words.
    pub(crate) fn try_mount(&mut self) -> Result<(), String> {
        let Some((_, image)) = &self.image else { return Ok(()) };
        let log = File::create(self.scratch.path().join("mount.log")).expect("a log");
        let mut command = nacre();
        command.args(["mount", "-f"]);
        if let Some(options) = &self.options {
            command.args(["-o", options]);
        }
        command.arg(image).arg(self.dir());
        let output = log.try_clone().expect("a second handle");
        let mut child =
            command.stdin(Stdio::null()).stdout(output).stderr(log).spawn().expect("nacre mount runs");
        let end = Instant::now() + MOUNT_LIMIT;
        while !self.is_usable() {
            if let Some(status) = child.try_wait().expect("the state of nacre mount") {
                return Err(format!("{status}\n{}", self.mount_log()));
            }
            assert!(
                Instant::now() < end,
                "nacre mount: not usable after {MOUNT_LIMIT:?}\n{}",
                self.mount_log()
            );
            thread::sleep(Duration::from_millis(5));
        }
        self.daemon = Some(child);
        Ok(())
    }

    /// What the mount process said.
    pub(crate) fn mount_log(&self) -> String {
        fs::read_to_string(self.scratch.path().join("mount.log")).unwrap_or_default()
    }

    /// statfs(2) always reaches the server; attributes of a dead mount may still be cached. One call says both: between two
    /// a dead mount could go, and the bare directory would count.
    fn is_usable(&self) -> bool {
        const FUSE: u64 = 0x6573_5546;
        rustix::fs::statfs(self.dir()).is_ok_and(|found| found.f_type as u64 == FUSE)
    }

    /// Unmounts cleanly: the process that served it must end with success.
    pub(crate) fn unmount(&mut self) {
        let Some(daemon) = self.daemon.take() else { return };
        // A child that another test is just starting holds our files between its fork and its exec.
        let end = Instant::now() + MOUNT_LIMIT;
        loop {
            let output = run(nacre().arg("umount").arg(self.dir()), MOUNT_LIMIT).expect("nacre umount runs");
            if output.status.success() {
                break;
            }
            let text = text(&output);
            assert!(text.contains("in use") && Instant::now() < end, "nacre umount: {text}");
            thread::sleep(Duration::from_millis(20));
        }
        let status =
            wait(daemon, MOUNT_LIMIT).unwrap_or_else(|error| panic!("nacre mount after umount: {error}"));
        assert!(status.success(), "nacre mount after umount: {status}\n{}", self.mount_log());
    }

    /// Unmounts and mounts again, so that what is read afterwards comes from PM; on the control, nothing.
    pub(crate) fn remount(&mut self) {
        self.unmount();
        self.mount();
    }

    /// Kills the process that serves the mount with SIGKILL. The dead mount stays, for the next mount to replace.
    pub(crate) fn kill(&mut self) {
        let mut daemon = self.daemon.take().expect("it is mounted");
        daemon.kill().expect("kill");
        daemon.wait().expect("wait");
    }

    /// Waits for a server whose mount has gone away otherwise than by [`Ground::unmount`].
    pub(crate) fn forget(&mut self) {
        if let Some(daemon) = self.daemon.take() {
            wait(daemon, MOUNT_LIMIT).unwrap_or_else(|error| panic!("nacre mount: {error}"));
        }
    }

    /// Checks the unmounted file system: `fsck -n` must find nothing.
    pub(crate) fn fsck(&self) {
        assert!(self.daemon.is_none(), "fsck needs it unmounted");
        if self.is_nacre() {
            succeed(nacre().args(["fsck", "-n"]).arg(self.image()), MOUNT_LIMIT);
        }
    }
}

/// A nacre file system that what is run on it may remount; it is checked each time.
pub(crate) struct Remounted(Arc<Mutex<Ground>>);

impl Remounted {
    /// One of this preset and size, mounted.
    pub(crate) fn new(preset: &str, size: &str) -> Remounted {
        Remounted(Arc::new(Mutex::new(Ground::preset(preset, size, None))))
    }

    /// One of this kind.
    pub(crate) fn of(kind: Kind, size: &str) -> Remounted {
        Remounted(Arc::new(Mutex::new(Ground::of(kind, size))))
    }

    /// Its directory, for the suite and for random calls; without what is lacking.
    pub(crate) fn target(&self, lacking: &[(Need, &str)]) -> DirectoryTarget {
        let ground = Arc::clone(&self.0);
        let remount = Box::new(move || {
            let mut ground = ground.lock().expect("no remount has panicked");
            ground.unmount();
            ground.fsck();
            ground.mount();
        });
        let ground = Arc::clone(&self.0);
        let crash = Box::new(move || {
            let mut ground = ground.lock().expect("no remount has panicked");
            ground.kill();
            ground.mount();
        });
        let dir = self.0.lock().expect("no remount has panicked").dir();
        DirectoryTarget::new(&dir, lacking, Some(remount)).with_crash(crash)
    }

    /// Unmounts and checks it.
    pub(crate) fn end(self) {
        let mut ground = self.0.lock().expect("no remount has panicked");
        ground.unmount();
        ground.fsck();
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        // The test may be failing already: do all that can be done, report nothing.
        for _ in 0..4 {
            // Dead mounts may lie on one another.
            if rustix::mount::unmount(self.dir(), UnmountFlags::DETACH).is_err() {
                break;
            }
        }
        if let Some(mut daemon) = self.daemon.take() {
            let end = Instant::now() + Duration::from_secs(10);
            while matches!(daemon.try_wait(), Ok(None)) && Instant::now() < end {
                thread::sleep(Duration::from_millis(5));
            }
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        if thread::panicking() && self.is_nacre() {
            println!("the mount process said:\n{}", self.mount_log());
        }
    }
}

/// True when something is mounted exactly there.
pub(crate) fn is_mount_point(dir: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let dir = dir.to_string_lossy();
    mounts.lines().any(|line| line.split(' ').nth(4) == Some(&dir))
}
