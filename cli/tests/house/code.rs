//! Measures of the code: circles, widths, lengths, waivers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::{assert_all, files, hold, root, shipped};

/// The files of a crate by their modules, and the modules that each imports by `use crate::`.
fn imports(source: &str) -> BTreeMap<String, BTreeSet<String>> {
    let dir = root().join(source);
    let module = |path: &Path| {
        let inner = path.strip_prefix(&dir).expect("below the sources").with_extension("");
        let name = inner.to_string_lossy().replace('/', "::");
        name.strip_suffix("::mod").unwrap_or(&name).to_owned()
    };
    let sources: BTreeMap<String, String> =
        files(source, ".rs").iter().map(|path| (module(path), shipped(path))).collect();
    let imported = |text: &str| {
        let paths = text.lines().filter_map(|line| line.split_once("use crate::").map(|(_, path)| path));
        paths.filter_map(|path| longest(path, &sources)).collect::<BTreeSet<String>>()
    };
    sources.iter().map(|(name, text)| (name.clone(), imported(text))).collect()
}

/// The module that a path leads into, as deep as there are files.
fn longest(path: &str, modules: &BTreeMap<String, String>) -> Option<String> {
    let path = path.trim_end_matches(';');
    let mut parts: Vec<&str> = path.split("::").take_while(|part| !part.starts_with('{')).collect();
    while !parts.is_empty() {
        let name = parts.join("::");
        if modules.contains_key(&name) {
            return Some(name);
        }
        parts.pop();
    }
    None
}

/// The most files of which each leads to every other.
fn largest_circle(graph: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<&str> {
    let reached = |from: &str| {
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        let mut pending: Vec<&str> = graph[from].iter().map(String::as_str).collect();
        while let Some(next) = pending.pop() {
            if seen.insert(next) {
                pending.extend(graph[next].iter().map(String::as_str));
            }
        }
        seen
    };
    let all: BTreeMap<&str, BTreeSet<&str>> =
        graph.keys().map(|name| (name.as_str(), reached(name))).collect();
    let circle = |name: &str| -> BTreeSet<&str> {
        all[name].iter().copied().filter(|other| all[other].contains(name)).collect()
    };
    all.keys().map(|name| circle(name)).max_by_key(BTreeSet::len).unwrap_or_default()
}

#[test]
fn few_files_import_each_other_in_circles() {
    let crates = files("", "lib.rs");
    let sources = crates.iter().filter_map(|path| path.parent()?.strip_prefix(root()).ok()?.to_str());
    assert_all(sources.map(|source| {
        let graph = imports(source);
        let circle = largest_circle(&graph);
        let failure = hold(&format!("files of {source} in one circle"), circle.len(), 4, 4);
        failure.map(|said| format!("{said}: {}", circle.into_iter().collect::<Vec<_>>().join(", ")))
    }));
}

#[test]
fn circles_are_found() {
    let graph = |edges: &[(&str, &str)]| {
        let mut graph: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (from, to) in edges {
            graph.entry((*to).to_owned()).or_default();
            graph.entry((*from).to_owned()).or_default().insert((*to).to_owned());
        }
        graph
    };
    let chain = graph(&[("a", "b"), ("b", "c")]);
    assert_eq!(largest_circle(&chain).len(), 0);
    let circle = graph(&[("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("e", "a")]);
    assert_eq!(largest_circle(&circle), BTreeSet::from(["a", "b", "c"]));
}

/// The lines from one that begins with `head` to the brace that closes it, as rustfmt has them.
fn block<'a>(text: &'a str, head: &str) -> Vec<&'a str> {
    let mut lines = text.lines().skip_while(|line| !line.trim_start().starts_with(head));
    let first = lines.next().unwrap_or_else(|| panic!("no line begins with {head}"));
    let close = format!("{}}}", &first[..first.len() - first.trim_start().len()]);
    lines.take_while(|line| *line != close).collect()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn the_mover_and_the_contract_do_not_grow() {
    let fields = block(&read("mover/src/fs.rs"), "pub struct TieredFs<")
        .iter()
        .filter(|line| !line.trim_start().starts_with("//") && line.ends_with(','))
        .count();
    let is_impl =
        |line: &&str| line.starts_with("impl<") && line.contains(" TieredFs<") && line.ends_with('{');
    let impls: usize =
        files("mover/src", ".rs").iter().map(|path| shipped(path).lines().filter(is_impl).count()).sum();
    let functions = |path: &str, head: &str, begin: &str| {
        block(&read(path), head).iter().filter(|line| line.starts_with(begin)).count()
    };
    let methods = |path: &str, name: &str| functions(path, &format!("pub trait {name}"), "    fn ");
    // The methods that each layout writes. Those of tiers are for a layout that has them.
    let contract = methods("engine/src/namespace.rs", "Names:")
        + methods("engine/src/content.rs", "Data:")
        + methods("engine/src/space.rs", "Extents:")
        + methods("engine/src/below_buffer.rs", "BelowBuffer:")
        - functions("engine/src/below_buffer.rs", "macro_rules! no_tiers_below_buffer", "        fn ");
    let tiering = methods("engine/src/tiering/table.rs", "TierTable:")
        + methods("engine/src/tiering/space.rs", "TierBlocks:")
        + methods("engine/src/tiering/relocate.rs", "Relocate:");
    let optional = methods("engine/src/tiering/write.rs", "WriteToTier:")
        + methods("engine/src/tiering/log_offload.rs", "LogOffload:");
    assert_all([
        hold("fields of TieredFs", fields, 8, 8),
        hold("impl blocks of TieredFs", impls, 6, 6),
        hold("methods of the contract", contract, 45, 45),
        hold("methods of a layout with tiers", tiering, 19, 19),
        hold("optional methods of a layout with tiers", optional, 11, 11),
    ]);
}

/// One chain makes room after a lack of space. Other places that look for it choose another place for data, leave
/// optional work, or report; some of these do so by `unless_full`.
#[test]
fn a_lack_of_space_is_handled_in_one_place() {
    let is_match = |line: &&str| {
        let patterns = ["== Kind::NoSpace", "!= Kind::NoSpace", "Kind::NoSpace =>"];
        !line.trim_start().starts_with("//")
            && (patterns.iter().any(|pattern| line.contains(pattern))
                || line.contains("matches!") && line.contains("Kind::NoSpace"))
    };
    let apart = ["engine/src/reclaim.rs", "engine/src/error.rs", "fuse/src/errno.rs"];
    let layers = ["engine", "layouts", "cache", "mover", "tiers", "vfs", "stack", "fuse"];
    let sources = layers.iter().flat_map(|layer| files(layer, ".rs"));
    let sources = sources.filter(|path| path.components().any(|part| part.as_os_str() == "src"));
    let (mut places, mut choices) = (Vec::new(), 0);
    for path in sources.filter(|path| !apart.iter().any(|file| path.ends_with(file))) {
        let name = path.strip_prefix(root()).expect("in the workspace").display().to_string();
        let text = shipped(&path);
        choices += text.matches("unless_full(").count();
        places.extend(text.lines().filter(is_match).map(|line| format!("{name}: {}", line.trim())));
    }
    println!("places that look for a lack of space:\n{}", places.join("\n"));
    assert_all([
        hold("places that look for a lack of space", places.len(), 12, 12),
        hold("calls of unless_full", choices, 12, 12),
    ]);
}

/// The macros that print panic if the output is closed or full. Commands ended in a backtrace, with an exit code that
/// none of them documents.
#[test]
fn no_command_prints_in_a_way_that_can_panic() {
    // Tests call these. The macros print into the output of the test, which is shown only if it fails.
    let for_tests = ["lab/src/suite/runner.rs", "lab/src/random/run.rs", "lab/src/calls/run.rs"];
    let (mut read, mut found) = (0, Vec::new());
    for path in ["cli/src", "bench/src", "lab/src"].iter().flat_map(|source| files(source, ".rs")) {
        let name = path.strip_prefix(root()).expect("in the workspace").display().to_string();
        if for_tests.contains(&name.as_str()) || name.ends_with("/tests.rs") || name.contains("/tests/") {
            continue;
        }
        read += 1;
        let text = shipped(&path);
        found.extend(text.lines().filter(|line| prints(line)).map(|line| format!("{name}: {}", line.trim())));
    }
    assert!(read > 200, "only {read} files were read");
    assert!(found.is_empty(), "use output, notice or say instead:\n{}", found.join("\n"));
}

/// True for a line of code that prints by a macro that can panic.
fn prints(line: &str) -> bool {
    !line.trim_start().starts_with("//") && (line.contains("print!(") || line.contains("println!("))
}

#[test]
fn lines_that_print_are_found() {
    for line in ["println!();", "    eprintln!(", "print!(\"a\")", "x => eprint!(\"a\"),"] {
        assert!(prints(line), "{line}");
    }
    for line in ["// println!()", "writeln!(out)?;", "size::print(bytes)", "let text = print(one);"] {
        assert!(!prints(line), "{line}");
    }
}

#[test]
fn functions_and_files_are_short_and_take_few_arguments() {
    let (mut waivers, mut file, mut function) = (0, (0, String::new()), (0, String::new()));
    for path in files("", ".rs").iter().filter(|path| path.components().any(|part| part.as_os_str() == "src"))
    {
        let text = shipped(path);
        let name = path.strip_prefix(root()).expect("in the workspace").display().to_string();
        waivers += text.matches("clippy::too_many_arguments").count();
        file = file.max((text.lines().count(), name.clone()));
        let longest = functions(&text).into_iter().max_by_key(|(lines, _)| *lines);
        function = function
            .max(longest.map_or((0, String::new()), |(lines, head)| (lines, format!("{name}: {head}"))));
    }
    println!("the longest file is {}, the longest function {}", file.1, function.1);
    assert_all([
        hold("waivers of too_many_arguments", waivers, 0, 0),
        hold("lines of the longest file", file.0, 657, 600),
        hold("lines of the longest function", function.0, 88, 60),
    ]);
}

/// The lines of each function, and its first one.
fn functions(text: &str) -> Vec<(usize, &str)> {
    let lines: Vec<&str> = text.lines().collect();
    let is_head = |line: &str| {
        let words = line.trim_start();
        let words = words.strip_prefix("pub ").or(words.strip_prefix("pub(crate) ")).unwrap_or(words);
        words.starts_with("fn ") || words.starts_with("const fn ") || words.starts_with("unsafe fn ")
    };
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate().filter(|(_, line)| is_head(line)) {
        let close = format!("{}}}", &line[..line.len() - line.trim_start().len()]);
        // A declaration ends with its head.
        let has_body = lines[at..]
            .iter()
            .find(|line| line.ends_with(['{', ';']))
            .is_some_and(|line| line.ends_with('{'));
        if let Some(end) = lines[at..].iter().position(|line| *line == close).filter(|_| has_body) {
            found.push((end + 1, line.trim()));
        }
    }
    found
}

#[test]
fn functions_are_measured() {
    let text = "fn one() {\n    a;\n}\n\nfn none();\n\nimpl A {\n    pub fn two(\n        a: u8,\n    ) -> u8 {\n        a\n    }\n}\n";
    assert_eq!(functions(text), [(3, "fn one() {"), (5, "pub fn two(")]);
}

/// The command carries what researchers and developers use.
#[test]
fn the_command_carries_little() {
    let manifest = read("cli/Cargo.toml");
    let (shipped, _) = manifest.split_once("[dev-dependencies]").expect("dependencies of tests");
    let carried = ["nacre-bench", "nacre-lab"].iter().filter(|name| shipped.contains(**name)).count();
    assert_all([hold("of bench and lab in the command", carried, 2, 0)]);
}
