//! Measures of the code and of the prose, each held to a bound. A bound that is passed fails, and so does one that has
//! become too wide: it is lowered then, until it is the target.

mod code;
mod prose;

use std::fs;
use std::path::{Path, PathBuf};

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the workspace").to_owned()
}

/// Files below a directory of the workspace with this ending, in order. Files that builds and tests make are left out.
pub(crate) fn files(below: &str, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut pending = vec![root().join(below)];
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display())) {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            if path.is_dir() && name != "target" && !name.starts_with('.') {
                pending.push(path);
            } else if name.ends_with(ending) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The text of a source file without its tests, which stand at its end.
pub(crate) fn shipped(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let tests = text.match_indices("#[cfg(").find(|(at, _)| {
        let (line, rest) = text[*at..].split_once('\n').unwrap_or((&text[*at..], ""));
        line.contains("test")
            && rest.starts_with("mod ")
            && rest.lines().next().is_some_and(|l| l.ends_with('{'))
    });
    tests.map_or(text.as_str(), |(at, _)| &text[..at]).to_owned()
}

/// Holds a figure to its bound. A bound more than a thirtieth too wide fails, too, until it is lowered.
pub(crate) fn hold(what: &str, is: usize, bound: usize, target: usize) -> Option<String> {
    println!("{what}: {is} (bound {bound}, target {target})");
    match is {
        is if is > bound => Some(format!("{what}: {is}, and the bound is {bound}")),
        is if is + bound / 30 < bound && bound > target => {
            Some(format!("{what}: {is}; lower its bound of {bound}, it must not grow again"))
        }
        _ => None,
    }
}

/// Fails with all that does not hold.
pub(crate) fn assert_all(failures: impl IntoIterator<Item = Option<String>>) {
    let failures: Vec<String> = failures.into_iter().flatten().collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
