//! The command as scripts and people call it: exit codes, JSON, dry runs, and the names that other programs call it by.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;

use crate::harness::{self, Ground, nacre};
use crate::tier_commands::Loop;

const LIMIT: Duration = Duration::from_secs(60);

fn call(arguments: &[&str], path: &Path) -> Output {
    harness::run(nacre().args(arguments).arg(path), LIMIT).expect("the command ends")
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or_else(|| panic!("{}", output.status))
}

/// The words of a command that must end with this code.
fn text_of(output: &Output, expected: i32) -> String {
    let text = harness::text(output);
    assert_eq!(code(output), expected, "{text}");
    text
}

fn json(output: &Output) -> Value {
    assert_eq!(code(output), 0, "{}", harness::text(output));
    let value: Value = serde_json::from_slice(&output.stdout).expect("JSON on standard output");
    assert_eq!(value["schema"], 1);
    value
}

/// Messages named parts of an operation, the object first or not at all, sizes that no file has, and no cause.
#[test]
fn what_is_no_file_system_is_refused_by_operation_object_and_cause() {
    let dir = harness::memory();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("empty"), "").unwrap();
    fs::write(at("short"), [7; 100]).unwrap();
    fs::write(at("text"), "hello").unwrap();
    fs::create_dir(at("directory")).unwrap();
    let commands = [
        "mkfs",
        "mount -n",
        "fsck",
        "info",
        "df",
        "stat",
        "umount",
        "top --once",
        "tier list",
        "mover status",
        "scrub status",
    ];
    for name in ["missing", "empty", "short", "text", "directory"] {
        let path = at(name);
        for words in commands {
            let mut command = nacre();
            command.args(words.split(' ')).arg(&path);
            if words.starts_with("mount") {
                command.arg(at("directory"));
            }
            let output = harness::run(&mut command, LIMIT).expect("the command ends");
            let said = harness::text(&output);
            let operation = words.split(" -").next().unwrap();
            let begin = format!("nacre: {operation}: {}: ", path.display());
            assert!(code(&output) != 0 && said.starts_with(&begin), "{words} {name}: {said}");
            for wrong in ["os error", "invalid argument", "of 64 bytes", "ask:", "open:"] {
                assert!(!said.contains(wrong), "{words} {name}: {said}");
            }
            assert!(name != "missing" || said.to_lowercase().contains("no such"), "{words}: {said}");
        }
    }
    // The size is that of the file.
    let said = harness::text(&call(&["mkfs", "-f"], &at("short")));
    assert!(said.contains("a size of 100 bytes: a file system takes 16 MiB to 16 TiB"), "{said}");
    assert_eq!(fs::read(at("short")).unwrap(), [7; 100]);
}

#[test]
fn a_wrong_command_line_has_the_code_that_the_caller_expects() {
    for (arguments, expected) in [
        (&["--help"][..], 0),
        (&["--version"], 0),
        (&["mkfs", "--help"], 0),
        (&[], 2),
        (&["nonsense"], 2),
        (&["mkfs"], 2),
        (&["crash", "--help"], 0),
        (&["crash", "--layout", "bpfs"], 2),
        (&["crash", "--self-test", "--resume", "file"], 2),
        (&["mkfs", "--size", "1X", "device"], 2),
        (&["mkfs", "--preset", "zfs", "device"], 2),
        (&["mkfs", "--preset", "hinfs", "--layout", "log", "device"], 2),
        (&["mkfs", "-n", "--preset", "nacre", "--layout", "inplace", "device"], 2),
        (&["fsck", "-n", "-y", "device"], 16),
        (&["fsck", "-p", "-y", "device"], 16),
        (&["fsck", "-y", "-a", "-f", "device"], 16),
        (&["fsck", "--nonsense", "device"], 16),
        (&["mount", "--nonsense"], 1),
    ] {
        let output = harness::run(nacre().args(arguments), LIMIT).expect("the command ends");
        assert_eq!(code(&output), expected, "{arguments:?}: {}", harness::text(&output));
        assert_eq!(
            output.stderr.is_empty(),
            expected == 0,
            "{arguments:?}: errors go to standard error, help does not"
        );
    }
}

/// It was said in the words of the standard library, "invalid digit found in string".
#[test]
fn a_wrong_number_is_refused_in_words() {
    for (words, code, why) in [
        ("demote --tier x /", 2, "'--tier <N>': give a whole number"),
        ("mover wait --timeout 0.5 /", 2, "give a whole number"),
        ("fsck -C x device", 16, "give a whole number"),
        ("crash --seed 99999999999999999999", 2, "the number is too large"),
        ("bench run micro.write -t preset:nova --seed 99999999999999999999", 2, "the number is too large"),
        // They checked nothing, and succeeded.
        ("crash --cached 0", 2, "give 1 or more"),
        ("crash --images 0", 2, "give 1 or more"),
        ("crash --time 0", 2, "give 1 or more"),
        ("crash --jobs x", 2, "give 1 or more"),
    ] {
        let output = harness::run(nacre().args(words.split(' ')), LIMIT).expect("the command ends");
        let said = text_of(&output, code);
        assert!(
            said.contains(why) && !said.contains("digit") && !said.contains("target type"),
            "{words}: {said}"
        );
    }
}

/// mkfs said that the file is there already.
#[test]
fn a_link_that_leads_nowhere_is_named() {
    let dir = harness::memory();
    symlink("nowhere", dir.path().join("link")).unwrap();
    let said = text_of(&call(&["mkfs", "--size", "64M"], &dir.path().join("link")), 1);
    assert!(
        said.contains("it is a symbolic link that leads to no file: give the path of the file"),
        "{said}"
    );
    assert!(!dir.path().join("nowhere").exists());
}

/// Those of mount(8) and umount(8) said that the flag is unknown.
#[test]
fn each_name_of_the_command_tells_its_help_and_its_version() {
    let dir = harness::scratch();
    for name in ["mount.nacre", "umount.nacre", "mkfs.nacre", "fsck.nacre", "mount.fuse.nacre"] {
        let program = dir.path().join(name);
        symlink(env!("CARGO_BIN_EXE_nacre"), &program).unwrap();
        let run = |flag: &str| harness::run(Command::new(&program).arg(flag), LIMIT).expect("it ends");
        for flag in ["-h", "--help"] {
            let said = text_of(&run(flag), 0);
            assert!(said.contains("Usage: ") && said.contains("-f"), "{name} {flag}: {said}");
        }
        for flag in ["-V", "--version"] {
            let said = text_of(&run(flag), 0);
            assert!(said.ends_with(concat!(" ", env!("CARGO_PKG_VERSION"), "\n")), "{name} {flag}: {said}");
        }
        assert!(run("--nonsense").status.code() > Some(0), "{name}");
    }
    // It was passed over.
    let unmount = harness::run(Command::new(dir.path().join("umount.nacre")).args(["-x", "/mnt"]), LIMIT);
    let said = text_of(&unmount.expect("it ends"), 2);
    assert_eq!(said, "nacre: umount.nacre: the flag -x is unknown\n");
}

#[test]
fn crash_explores_and_replays() {
    let dir = harness::memory();
    let limited = ["crash", "--json", "--jobs", "1", "--images", "500", "--traces"];
    let report = json(&call(&limited, dir.path()));
    assert_eq!((&report["layout"], &report["complete"]), (&"log".into(), &false.into()));
    assert!(report["images"]["different"].as_u64().is_some_and(|images| images > 100));
    assert_eq!(report["violations"].as_array().map(Vec::len), Some(0));
    // A crash in which nothing is wrong, and one that cannot be.
    let trace = dir.path().join("trace");
    let text = "nacre crash trace 1\nlayout log\nop create file a\ncrash 0\n";
    fs::write(&trace, text).expect("a trace");
    let replayed = json(&call(&["crash", "--json", "--replay"], &trace));
    assert_eq!(replayed["problems"].as_array().map(Vec::len), Some(0), "{replayed}");
    fs::write(&trace, text.replace("crash 0", "crash 999")).expect("a trace");
    let replayed = json(&call(&["crash", "--json", "--replay"], &trace));
    assert!(
        replayed["situation"].as_str().is_some_and(|words| words.contains("cannot happen")),
        "{replayed}"
    );
    fs::write(&trace, "something else").expect("a file");
    assert_eq!(code(&call(&["crash", "--replay"], &trace)), 1);
}

#[test]
fn mkfs_makes_files_and_spares_what_is_there() {
    let dir = harness::memory();
    let path = dir.path().join("new.img");
    let dry = call(&["mkfs", "-n", "--size", "32M"], &path);
    assert!(code(&dry) == 0 && !path.exists(), "{}", harness::text(&dry));
    assert_eq!(code(&call(&["mkfs"], &path)), 1, "no file and no size");
    let uuid = "6ba7b810-9dad-11d1-80b4-00c04fd430c8";
    let made = json(&call(&["mkfs", "--json", "--size", "32M", "--label", "scratch", "--uuid", uuid], &path));
    assert_eq!(made["volume"]["size"], 32 << 20);
    assert_eq!(fs::metadata(&path).expect("the file").len(), 32 << 20);
    let info = json(&call(&["info", "--json"], &path));
    assert_eq!((&info["volume"]["label"], &info["volume"]["uuid"]), (&"scratch".into(), &uuid.into()));
    // It holds a file system now.
    for arguments in [&["mkfs"][..], &["mkfs", "-n"]] {
        let output = call(arguments, &path);
        assert_eq!(code(&output), 1);
        assert!(harness::text(&output).contains("nacre file system"), "{}", harness::text(&output));
    }
    assert_eq!(code(&call(&["mkfs", "-f", "--preset", "nova"], &path)), 0);
    assert_eq!(json(&call(&["info", "--json"], &path))["volume"]["preset"], "nova");
}

/// The promise of a device is told where a file system is made and where it is mounted, and a dry run refuses what the
/// command refuses.
#[test]
fn the_promise_of_a_device_is_told_and_required() {
    let dir = harness::memory();
    let path = dir.path().join("pm");
    let made = call(&["mkfs", "--size", "32M"], &path);
    let words = "safe against the death of the process, not against power loss (this file is used through";
    assert!(code(&made) == 0 && harness::text(&made).contains(words), "{}", harness::text(&made));
    let mount = |arguments: &[&str]| {
        let arguments = ["mount", "-n"].iter().chain(arguments);
        harness::run(nacre().args(arguments).arg(&path).arg(dir.path()), LIMIT).expect("the command ends")
    };
    let would = mount(&[]);
    assert!(code(&would) == 0 && harness::text(&would).contains(words), "{}", harness::text(&would));
    for (arguments, why) in [
        (&["--require", "power"][..], "not against power loss"),
        (&["-o", "preset=hinfs,buffer"], "preset hinfs on the layout log"),
        (&["-o", "tune=name_index:off"], "name_index"),
    ] {
        let refused = mount(arguments);
        assert_eq!(code(&refused), 32, "{arguments:?}: {}", harness::text(&refused));
        assert!(harness::text(&refused).contains(why), "{arguments:?}: {}", harness::text(&refused));
    }
    for arguments in [&["mkfs", "-f", "--require", "power"][..], &["mkfs", "-nf", "--require", "power"]] {
        let refused = call(arguments, &path);
        assert!(code(&refused) == 1, "{arguments:?}: {}", harness::text(&refused));
    }
    let image = fs::read(&path).expect("the image");
    let held = nacre_media::RealPm::open(&path, &nacre_media::PmOptions::default()).expect("free");
    let busy = mount(&[]);
    assert!(
        code(&busy) == 32 && harness::text(&busy).contains("uses this device"),
        "{}",
        harness::text(&busy)
    );
    drop(held);
    assert!(fs::read(&path).expect("the image") == image, "a dry run writes nothing");
    fs::File::options()
        .write(true)
        .open(&path)
        .expect("it")
        .write_all_at(&[0; 17 * 4096], 0)
        .expect("written");
    let lost = mount(&[]);
    assert!(code(&lost) == 32 && !harness::text(&lost).contains("mkfs"), "{}", harness::text(&lost));
}

/// The data of a page with a media error is lost once: a repair writes over the page, and says so.
#[test]
fn fsck_repairs_over_media_errors() {
    let dir = harness::memory();
    let path = dir.path().join("pm");
    for (layout, places) in [
        // Superblocks, list of bad blocks, chunk table, the root's block of inodes.
        ("log", &[0, 16, 17, 18, 19][..]),
        // Superblocks, list of bad blocks, a lane of the journal.
        ("inplace", &[0, 16, 17, 19]),
    ] {
        for place in places {
            assert_eq!(code(&call(&["mkfs", "-f", "--layout", layout, "--size", "64M"], &path)), 0);
            let emulate = format!("dram,poison={}+4096", place * 4096);
            let dry = call(&["fsck", "-n", "--emulate", &emulate], &path);
            let what = format!("{layout}, block {place}");
            assert_eq!(code(&dry), 4, "{what}: {}", harness::text(&dry));
            let repaired = call(&["fsck", "-y", "--emulate", &emulate], &path);
            assert_eq!(code(&repaired), 1, "{what}: {}", harness::text(&repaired));
            let sound = call(&["fsck", "-n"], &path);
            assert_eq!(code(&sound), 0, "{what}: {}", harness::text(&sound));
        }
    }
}

#[test]
fn mkfs_spares_what_others_made() {
    const TEST: &str = "mkfs on another file system";
    if !harness::has_program(TEST, "mkfs.ext4") {
        return;
    }
    let dir = harness::memory();
    let path = dir.path().join("other.img");
    fs::File::create(&path).and_then(|file| file.set_len(32 << 20)).expect("a file");
    harness::succeed(harness::program("mkfs.ext4").arg("-q").arg(&path), LIMIT);
    let output = call(&["mkfs"], &path);
    assert_eq!(code(&output), 1);
    assert!(harness::text(&output).contains("ext"), "{}", harness::text(&output));
    assert_eq!(code(&call(&["mkfs", "-f"], &path)), 0);
    assert_eq!(code(&call(&["fsck", "-n"], &path)), 0);
}

#[test]
fn the_names_that_mkfs_and_fsck_call() {
    let dir = harness::memory();
    let path = dir.path().join("pm.img");
    let named = |name: &str| {
        let link = dir.path().join(name);
        symlink(env!("CARGO_BIN_EXE_nacre"), &link).expect("a link");
        link
    };
    harness::succeed(Command::new(named("mkfs.nacre")).args(["--size", "16M"]).arg(&path), LIMIT);
    // As fsck(8) calls it at boot, and with each option that it hands on or that other checkers have.
    let fsck = named("fsck.nacre");
    for options in ["-a -T -C0", "-a", "-p", "-y", "-n", "-M", "-C0", "-f", "-v", "-M -p -f"] {
        let text = harness::succeed(Command::new(&fsck).args(options.split(' ')).arg(&path), LIMIT);
        assert!(text.contains("pm.img"), "{options}: {text}");
    }
    let report = json(&call(&["fsck", "-n", "--json"], &path));
    assert_eq!(report["report"]["directories"], 1);
    assert_eq!(report["report"]["problems"], Value::Array(Vec::new()));
}

/// The code of some commands is in programs of their own, beside the command.
#[test]
fn benchmarks_and_the_explorer_are_programs_of_their_own() {
    let run = |program: &Path, arguments: &[&str]| {
        harness::run(Command::new(program).args(arguments), LIMIT).expect("the command ends")
    };
    let dir = harness::scratch();
    let alone = dir.path().join("nacre");
    fs::copy(env!("CARGO_BIN_EXE_nacre"), &alone).expect("a copy");
    for (arguments, sibling) in [
        (&["bench", "paper", "--list"][..], "nacre-bench"),
        (&["crash", "--images", "100"], "nacre-lab"),
        (&["demo", "--size", "64M"], "nacre-lab"),
    ] {
        let said = text_of(&run(&alone, arguments), 1);
        let words = [sibling, "not installed beside nacre", "make install"];
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
    }
    fs::copy(env!("CARGO_BIN_EXE_nacre-bench"), dir.path().join("nacre-bench")).expect("a copy");
    let through = text_of(&run(&alone, &["bench", "paper", "--list"]), 0);
    let bench = Path::new(env!("CARGO_BIN_EXE_nacre-bench"));
    assert_eq!(text_of(&run(bench, &["paper", "--list"]), 0), through);
    let lab = Path::new(env!("CARGO_BIN_EXE_nacre-lab"));
    // A server has no code of theirs: words that only they say are not in it.
    for (program, words) in [(bench, "it has no tier: give it tier="), (lab, "not covered by this run")] {
        let has = |program: &Path| {
            let bytes = fs::read(program).expect("a program");
            bytes.windows(words.len()).any(|window| window == words.as_bytes())
        };
        assert!(has(program) && !has(&alone), "{words}");
    }
    // Other commands are a wrong command line.
    assert!(text_of(&run(lab, &["df"]), 2).contains("crash and demo"));
    assert!(text_of(&run(bench, &["--help"]), 0).contains("nacre bench"));
    assert_eq!(code(&run(&alone, &["bench", "nothing"])), 2, "nacre knows the command line");
}

/// `fsck -M` at boot failed for a device that was mounted already.
#[test]
fn a_mounted_device_is_passed_over_by_a_check_that_says_so() {
    if !harness::can_mount("fsck of a mounted device") {
        return;
    }
    let ground = Ground::nacre("16M", None);
    let text = text_of(&call(&["fsck", "-M", "-y"], ground.image()), 0);
    assert!(text.contains(&format!("mounted on {}, not checked", ground.dir().display())), "{text}");
    assert_eq!(json(&call(&["fsck", "-M", "--json"], ground.image()))["passed_over"], true);
    assert!(text_of(&call(&["fsck", "-y"], ground.image()), 8).contains("in use"));
}

/// The label of a mounted file system could not be asked for, as findmnt(8) and others do.
#[test]
fn the_kernel_gives_the_label_of_a_mount() {
    /// `FS_IOC_GETFSLABEL`.
    const GET_LABEL: libc::c_ulong = 0x8100_9431;
    if !harness::can_mount("the label of a mount") {
        return;
    }
    for label in ["", "a label"] {
        let (beside, dir) = (harness::memory(), harness::scratch());
        let image = beside.path().join("pm.img");
        harness::succeed(nacre().args(["mkfs", "--size", "16M", "--label", label]).arg(&image), LIMIT);
        let log = format!("log={}", beside.path().join("log").display());
        harness::succeed(nacre().args(["mount", "-o", &log]).args([&image, dir.path()]), LIMIT);
        fs::write(dir.path().join("file"), "").unwrap();
        for path in [dir.path().to_owned(), dir.path().join("file")] {
            let file = File::open(&path).unwrap();
            let mut said = [7; 256];
            // SAFETY: the request fills at most 256 bytes.
            let done = unsafe { libc::ioctl(file.as_raw_fd(), GET_LABEL, said.as_mut_ptr()) };
            assert_eq!(done, 0, "{}: {}", path.display(), std::io::Error::last_os_error());
            assert_eq!(&said[..=label.len()], format!("{label}\0").as_bytes());
        }
        harness::succeed(nacre().arg("umount").arg(dir.path()), LIMIT);
    }
}

#[test]
fn pages_and_completions_are_written() {
    let dir = harness::scratch();
    harness::succeed(nacre().arg("man").arg(dir.path().join("man8")), LIMIT);
    let page = fs::read_to_string(dir.path().join("man8/nacre-mkfs.8")).expect("a page for each subcommand");
    assert!(
        page.contains("Overwrite the contents of the device") && page.contains("nacre mkfs \\-n /dev/dax0.0")
    );
    for page in ["nacre.8", "nacre-tier-add.8", "mount.nacre.8", "umount.nacre.8", "fsck.nacre.8"] {
        assert!(dir.path().join("man8").join(page).exists(), "{page}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let script = harness::succeed(nacre().args(["completions", shell]), LIMIT);
        assert!(script.contains("umount") && script.contains("mkfs"), "{shell}");
        // They offered the processes of a measurement, too.
        assert!(!script.contains("worker") && !script.contains("emulated disk"), "{shell}");
    }
}

#[test]
fn a_mount_tells_about_itself_and_its_files() {
    if !harness::can_mount("info, df and stat of a mount") {
        return;
    }
    let mut ground = Ground::nacre("64M", Some("noatime,tune=emulate:dram"));
    // More extents than one answer of the mount holds: every second block.
    let path = ground.dir().join("scattered");
    let file = fs::File::create(&path).expect("a file");
    for index in 0..700 {
        file.write_all_at(&[7; 4096], index * 8192).expect("a block");
    }
    drop(file);
    let by_dir = json(&call(&["info", "--json"], &ground.dir()));
    let by_device = json(&call(&["info", "--json"], ground.image()));
    assert_eq!(by_dir["volume"]["uuid"], by_device["volume"]["uuid"]);
    assert!(by_dir["device"]["counters"]["lines_flushed"].as_u64() > Some(700 * 64), "{by_dir}");
    assert!(
        by_dir["mount"]["options"].as_str().is_some_and(|options| options.contains("noatime")),
        "{by_dir}"
    );

    assert!(
        by_dir["mount"]["durable"].as_str().is_some_and(|said| said.starts_with("when a write returns")),
        "{by_dir}"
    );

    let stat = json(&call(&["stat", "--json"], &path));
    assert_eq!(stat["extents"].as_array().map(Vec::len), Some(1399), "700 blocks and the holes between them");
    assert_eq!(stat["bytes"]["pm"], 700 * 4096);
    assert_eq!(code(&call(&["stat"], &ground.dir())), 1, "directories have no extents");
    assert_eq!(code(&call(&["stat"], ground.beside())), 1, "it is not on a mount of ours");

    let df = json(&call(&["df", "--json"], &ground.dir()));
    let row = df["file_systems"][0].clone();
    assert_eq!(row["mountpoint"], ground.dir().display().to_string());
    assert!(row["used"].as_u64() >= Some(700 * 4096), "{row}");
    ground.unmount();
    let unmounted = json(&call(
        &["stat", "--json", "--device", &ground.image().display().to_string()],
        Path::new("scattered"),
    ));
    assert_eq!(unmounted["extents"], stat["extents"]);
    let df = json(&call(&["df", "--json"], ground.image()));
    assert_eq!(df["file_systems"][0]["total"], row["total"]);
    assert_eq!(df["file_systems"][0]["mountpoint"], Value::Null);
}

/// mount(8), umount(8) and fstab with the names installed, in a mount namespace of its own so that nothing of it is left
/// on the machine.
#[test]
fn mount_by_type_and_by_fstab() {
    with_helpers(
        "mount -t nacre",
        r#"
        for type in nacre fuse.nacre; do
            mount -t $type -o noatime "$IMAGE" "$DIR/mnt"
            echo kept >"$DIR/mnt/$type"
            umount "$DIR/mnt"
        done
        # Settings within an option stand behind colons; a comma there is told.
        slow=tune=emulate:latency=200:bandwidth=1G
        mount -t nacre -o "ro,$slow" "$IMAGE" "$DIR/mnt"
        "$NACRE" info "$DIR/mnt" | grep -q "write 200 ns a line, 1.00 GB/s"
        umount "$DIR/mnt"
        mount -t nacre -o ro,tune=emulate:latency=200,bandwidth=1G "$IMAGE" "$DIR/mnt" 2>"$DIR/said" && exit 1
        grep -q "tune=emulate:latency=200:bandwidth=1G" "$DIR/said"
        line=defaults,nofail,x-systemd.automount,log=$DIR/log,$slow
        echo "$IMAGE $DIR/mnt nacre $line 0 2" >"$DIR/fstab"
        mount -T "$DIR/fstab" "$DIR/mnt"
        "$NACRE" info "$DIR/mnt" | grep -q "write 200 ns a line, 1.00 GB/s"
        test "$(cat "$DIR/mnt/nacre" "$DIR/mnt/fuse.nacre")" = "kept
kept"
        # A remount brings the options of the line, which are those that there are, or others.
        for is in ro rw; do
            mount -T "$DIR/fstab" -o remount,$is "$DIR/mnt"
            findmnt -n -o FS-OPTIONS "$DIR/mnt" | grep -q "^$is"
        done
        for other in log=$DIR/other tune=emulate:pcm; do
            mount -T "$DIR/fstab" -o "remount,$other" "$DIR/mnt" 2>"$DIR/said" && exit 1
            grep -q "cannot be changed while it is mounted" "$DIR/said"
        done
        umount "$DIR/mnt"
        fsck -t nacre -n "$IMAGE"
        fsck -t nacre -v -f "$IMAGE"
    "#,
    );
}

/// Runs a script with an image `$IMAGE` and a directory `$DIR`, where mount(8) and fsck(8) find the helpers. Gives its
/// standard output; `None` where that cannot be had, which is said.
fn with_helpers(test: &str, script: &str) -> Option<String> {
    if !harness::can_mount(test) || !harness::has_program(test, "unshare") {
        return None;
    }
    let dir = harness::memory();
    let image = dir.path().join("pm.img");
    harness::succeed(nacre().args(["mkfs", "--size", "64M"]).arg(&image), LIMIT);
    let install = r#"
        set -e
        mkdir "$DIR/upper" "$DIR/work" "$DIR/mnt"
        mount -t overlay overlay -o "lowerdir=/sbin,upperdir=$DIR/upper,workdir=$DIR/work" /sbin || exit 77
        for name in mkfs fsck mount mount.fuse umount umount.fuse; do ln -sf "$NACRE" "/sbin/$name.nacre"; done
    "#;
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-c", &format!("{install}{script}")]);
    command.env("DIR", dir.path()).env("IMAGE", &image).env("NACRE", env!("CARGO_BIN_EXE_nacre"));
    let output = harness::run(&mut command, LIMIT).expect("the script ends");
    if code(&output) == 77 {
        harness::left_out(test, "there is no overlayfs to install the names in for a moment");
        return None;
    }
    Some(text_of(&output, 0))
}

/// A line of fstab for another file system works, and says what of it changes nothing.
#[test]
fn options_of_fstab_are_taken_or_said_to_change_nothing() {
    /// Options; whether mount(8) and `nacre mount` say that they have no effect; and flags of the mount with them.
    const OPTIONS: [(&str, bool, bool, &str); 13] = [
        ("strictatime", true, true, "rw,relatime"),
        ("norelatime", false, true, "rw,relatime"),
        ("lazytime", true, true, "rw,relatime"),
        ("noatime", false, false, "rw,noatime"),
        ("nosymfollow", false, false, "rw,relatime,nosymfollow"),
        ("discard", true, true, "rw,relatime"),
        ("acl", false, false, "rw,relatime"),
        ("user_xattr", false, false, "rw,relatime"),
        ("X-mount.mkdir", false, true, "rw,relatime"),
        ("X-mount.mode=0750", false, true, "rw,relatime"),
        ("x-systemd.automount", false, false, "rw,relatime"),
        ("_netdev", false, false, "rw,relatime"),
        ("ro,nodev", false, false, "ro,nodev,relatime"),
    ];
    let calls: Vec<String> = OPTIONS
        .iter()
        .flat_map(|(option, ..)| {
            [("mount(8)", "mount -t nacre"), ("nacre", "$NACRE mount")].map(|(by, call)| {
                format!(
                    r#"{call} -o {option} "$IMAGE" "$DIR/mnt" >"$DIR/said" 2>&1
                    flags=$(findmnt -n -o VFS-OPTIONS "$DIR/mnt")
                    echo "{by} {option} $flags $(grep -c 'no effect' "$DIR/said")"
                    umount "$DIR/mnt"
                    "#
                )
            })
        })
        .collect();
    let Some(said) = with_helpers("options of fstab", &calls.concat()) else { return };
    let expected = OPTIONS.iter().flat_map(|(option, by_mount, by_nacre, flags)| {
        [("mount(8)", by_mount), ("nacre", by_nacre)]
            .map(|(by, is_said)| format!("{by} {option} {flags} {}", u8::from(*is_said)))
    });
    let said: Vec<&str> = said.lines().collect();
    assert_eq!(said, expected.collect::<Vec<_>>());
}

/// Where a file is could not be said of what the kernel had accepted and not written.
#[test]
fn stat_knows_of_what_waits_in_the_kernel() {
    if !harness::can_mount("stat beside the kernel's cache") {
        return;
    }
    let ground = Ground::nacre("64M", Some("writeback"));
    let path = ground.dir().join("file");
    let mut file = File::create_new(&path).unwrap();
    file.write_all(&[1; 40_960]).unwrap();
    let stat = json(&call(&["stat", "--json"], &path));
    assert_eq!((stat["size"].as_u64(), stat["bytes"]["pm"].as_u64()), (Some(40_960), Some(40_960)));
}

/// It printed "the device's size", and neither the domain nor the tiers; and promised a write-protected device.
#[test]
fn a_dry_run_of_mkfs_prints_size_domain_and_tiers() {
    let beside = harness::memory();
    let (pm, disk) = (beside.path().join("pm"), beside.path().join("disk"));
    let mkfs = |words: &[&str], device: &Path| {
        let output = harness::run(nacre().arg("mkfs").args(words).arg(device), LIMIT).unwrap();
        (output.status.success(), harness::text(&output))
    };
    let tier = format!("{}:32M", disk.display());
    let (is_possible, said) = mkfs(&["-n", "--size", "64M", "--tier", &tier], &pm);
    let words = ["64 MiB", "safe against the death of the process", "would be a tier of 32 MiB"];
    assert!(is_possible && words.iter().all(|word| said.contains(word)), "{said}");
    let (is_possible, said) = mkfs(&["-n", "--size", "64M", "--require", "power"], &pm);
    assert!(!is_possible && said.contains("more is required"), "{said}");
    assert!(!pm.exists() && !disk.exists());
    File::create(&pm).unwrap().set_len(64 << 20).unwrap();
    let (is_possible, said) = mkfs(&["-n"], &pm);
    assert!(is_possible && said.contains("64 MiB"), "{said}");
    const TEST: &str = "a dry run on a write-protected device";
    if !harness::can_mount(TEST) {
        return;
    }
    let Some(device) = Loop::with(&["--read-only"], &pm) else {
        return harness::left_out(TEST, "loop devices cannot be had");
    };
    for words in [&["-n"][..], &[]] {
        let (is_possible, said) = mkfs(words, device.path());
        assert!(!is_possible, "{words:?}: {said}");
    }
}
