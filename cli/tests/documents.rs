//! The documents must tell the truth: the crate graph of ARCHITECTURE.md, the formats in docs/format, and all links.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use xxhash_rust::xxh3::xxh3_64;

type Graph = BTreeMap<String, BTreeSet<String>>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the workspace").to_owned()
}

/// What each crate of ours depends on among ours, from cargo itself. Dependencies of tests are not counted.
fn graph_of_cargo() -> Graph {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("cargo prints JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    let name = |package: &serde_json::Value| package["name"].as_str().expect("a name").to_owned();
    let ours: BTreeSet<String> = packages.iter().map(name).collect();
    packages
        .iter()
        .map(|package| {
            let dependencies = package["dependencies"].as_array().expect("dependencies");
            let shipped = dependencies.iter().filter(|dependency| dependency["kind"] != "dev").map(name);
            (name(package), shipped.filter(|name| ours.contains(name)).collect())
        })
        .collect()
}

/// The table `| crate | depends on |` between the markers `<!-- crate-graph -->` and `<!-- /crate-graph -->`. Names may
/// stand in backquotes and are separated by commas; a dash or nothing means that the crate depends on none of ours.
fn graph_of_document(text: &str) -> Graph {
    let (_, rest) =
        text.split_once("<!-- crate-graph -->").expect("ARCHITECTURE.md has the marker crate-graph");
    let (table, _) = rest.split_once("<!-- /crate-graph -->").expect("the crate graph has its end marker");
    let rows = table.lines().map(str::trim).filter(|line| line.starts_with('|'));
    rows.skip(2)
        .map(|row| {
            let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
            let bare = |cell: &str| cell.trim().trim_matches('`').to_owned();
            let depends = cells.get(1).copied().unwrap_or("");
            let names =
                depends.split(',').map(bare).filter(|name| !name.is_empty() && name != "-" && name != "—");
            (bare(cells[0]), names.collect())
        })
        .collect()
}

#[test]
fn the_crate_graph_is_what_architecture_says() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md can be read");
    let document = graph_of_document(&text);
    let cargo = graph_of_cargo();
    let mut differences = Vec::new();
    for name in cargo.keys().chain(document.keys()).collect::<BTreeSet<_>>() {
        match (cargo.get(name), document.get(name)) {
            (Some(is), Some(says)) if is == says => {}
            (Some(is), Some(says)) => {
                differences.push(format!("{name} depends on {is:?}, the table says {says:?}"))
            }
            (Some(_), None) => differences.push(format!("{name} is missing in the table")),
            (None, _) => differences.push(format!("{name} is in the table but no crate")),
        }
    }
    assert!(
        differences.is_empty(),
        "change the table, if the change of the graph is meant:\n{}",
        differences.join("\n")
    );
}

#[test]
fn the_crate_graph_has_no_cycle() {
    let graph = graph_of_cargo();
    let mut done: BTreeSet<&String> = BTreeSet::new();
    while done.len() < graph.len() {
        let next: Vec<&String> = graph
            .iter()
            .filter(|(name, depends)| !done.contains(name) && depends.iter().all(|name| done.contains(name)))
            .map(|(name, _)| name)
            .collect();
        assert!(
            !next.is_empty(),
            "a cycle among {:?}",
            graph.keys().filter(|n| !done.contains(n)).collect::<Vec<_>>()
        );
        done.extend(next);
    }
}

/// A hash of what a format file defines: its lines without comments, blank lines and indentation, up to its tests.
fn format_hash(source: &str) -> String {
    let (shipped, _) = source.split_once("#[cfg(test)]").unwrap_or((source, ""));
    let code: Vec<String> = shipped
        .lines()
        .map(|line| line.split_once("//").map_or(line, |(code, _)| code))
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .filter(|line| !line.is_empty())
        .collect();
    format!("{:016x}", xxh3_64(code.join("\n").as_bytes()))
}

#[test]
fn comments_and_blanks_do_not_change_a_format() {
    let one = "const A: u64 = 1;\nstruct B {\n    c: u64,\n}\n";
    let same = "//! Bytes.\n\n/// A.\nconst A: u64 =  1; // one\nstruct B {\n  c: u64,\n}\n#[cfg(test)]\nmod tests {}\n";
    let other = "const A: u64 = 2;\nstruct B {\n    c: u64,\n}\n";
    assert_eq!(format_hash(one), format_hash(same));
    assert_ne!(format_hash(one), format_hash(other));
}

#[test]
fn the_format_documents_are_of_today() {
    let mut sources = vec![("tiers/src/format.rs".to_owned(), "docs/format/tier.md".to_owned())];
    for entry in fs::read_dir(root().join("layouts")).expect("layouts can be listed") {
        let layout = entry.expect("an entry").path();
        let name = layout.file_name().expect("a name").to_string_lossy().into_owned();
        sources.push((format!("layouts/{name}/src/format.rs"), format!("docs/format/{name}.md")));
    }
    assert!(sources.len() > 3, "no layout was found");
    for (file, path) in sources {
        let Ok(source) = fs::read_to_string(root().join(&file)) else { continue };
        let text = fs::read_to_string(root().join(&path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        let marked = text.split_once("<!-- format-hash:").and_then(|(_, rest)| rest.split_once("-->"));
        let (says, _) = marked.unwrap_or_else(|| panic!("{path} has no marker <!-- format-hash: … -->"));
        let is = format_hash(&source);
        assert_eq!(
            says.trim(),
            is,
            "{file} has changed: bring {path} up to date, then set its marker to\n\
             <!-- format-hash: {is} -->"
        );
    }
}

/// Files below a directory that are part of the source. Files that builds and tests make are left out.
fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display())) {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        match path.is_dir() {
            true if name == "target" || name == "work" || name.starts_with('.') => {}
            true => files(&path, found),
            false => found.push(path),
        }
    }
}

fn sources(endings: &[&str]) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    files(&root(), &mut found);
    let is_asked = |path: &PathBuf| {
        let name = path.file_name().expect("a name").to_string_lossy();
        endings.iter().any(|ending| name.ends_with(ending))
    };
    let text = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        (path, text)
    };
    found.into_iter().filter(is_asked).map(text).collect()
}

/// The anchors of a document's headings, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let kept = |letter: &char| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_');
    let anchor = |heading: &str| heading.trim_start_matches('#').trim().to_lowercase();
    headings
        .map(|heading| anchor(heading).chars().filter(kept).collect::<String>().replace(' ', "-"))
        .collect()
}

/// The targets of the links of a document.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let after = text.split("](").skip(1);
    after
        .filter_map(|rest| rest.split_once(')').map(|(target, _)| target))
        .filter(|target| !target.contains("://"))
}

#[test]
fn links_lead_somewhere() {
    let (mut dead, mut count) = (Vec::new(), 0);
    for (path, text) in sources(&[".md"]) {
        for link in links(&text) {
            count += 1;
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => path.clone(),
                file => path.parent().expect("a directory").join(file),
            };
            let has_anchor = || fs::read_to_string(&target).is_ok_and(|text| anchors(&text).contains(anchor));
            if !target.exists() || !anchor.is_empty() && !has_anchor() {
                dead.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(count > 30, "only {count} links were found");
    assert!(dead.is_empty(), "{}", dead.join("\n"));
}

#[test]
fn documents_that_the_source_names_exist() {
    let (mut missing, mut count) = (Vec::new(), 0);
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '/' | '-' | '_' | '.');
    for (path, text) in sources(&[".rs", ".md", ".toml", ".sh", "Makefile"]) {
        for (at, _) in text.match_indices("docs/").filter(|(at, _)| !text[..*at].ends_with(is_part)) {
            let name: String = text[at..].chars().take_while(|letter| is_part(*letter)).collect();
            let name = name.trim_end_matches('.');
            // A name that is put together at run time ends early, and so does a folder.
            if name.ends_with(".md") || name.ends_with(".txt") {
                count += 1;
                if !root().join(name).is_file() {
                    missing.push(format!("{}: {name}", path.display()));
                }
            }
        }
    }
    assert!(count > 30, "only {count} names were found");
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}
