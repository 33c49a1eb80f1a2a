//! The messages that docs/guide/troubleshooting.md explains are those of the source.

use std::fs;
use std::path::{Path, PathBuf};

/// The crates with messages for users of a file system.
const CRATES: [&str; 10] =
    ["cli", "stack", "fuse", "mover", "layouts", "media", "tiers", "cache", "vfs", "engine"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the workspace").to_owned()
}

/// Appends the sources below a directory that are in `src`.
fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display())) {
        let path = entry.expect("an entry").path();
        if path.is_dir() && path.file_name().is_some_and(|name| name != "target" && name != "tests") {
            sources(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
}

/// A source without its comments and tests, with its strings as they are printed: continued lines are one line, and
/// quotation marks are not escaped.
fn printed(source: &str) -> String {
    let shipped = source.split_once("#[cfg(test)]\nmod tests {").map_or(source, |(shipped, _)| shipped);
    let is_comment = |line: &str| line.trim_start().starts_with("//");
    let (mut text, mut is_continued) = (String::new(), false);
    for line in shipped.lines().filter(|line| !is_comment(line)) {
        let line = if is_continued { line.trim_start() } else { line };
        is_continued = line.ends_with('\\');
        text += line.strip_suffix('\\').unwrap_or(line);
        text += if is_continued { "" } else { "\n" };
    }
    text.replace("\\\"", "\"")
}

/// The messages of the page: the first cells of its tables.
fn messages(page: &str) -> impl Iterator<Item = &str> {
    page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |").map(|(message, _)| message))
}

#[test]
fn each_message_of_the_guide_is_in_the_source() {
    let path = root().join("docs/guide/troubleshooting.md");
    let page = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut found = Vec::new();
    CRATES.iter().for_each(|name| sources(&root().join(name), &mut found));
    let texts: Vec<String> =
        found.iter().map(|path| printed(&fs::read_to_string(path).expect("a source"))).collect();
    let parts =
        |message: &str| -> Vec<String> { message.split('…').map(|part| part.trim().to_owned()).collect() };
    let is_stale = |message: &&str| {
        let parts = parts(message);
        !texts.iter().any(|text| parts.iter().all(|part| text.contains(part)))
    };
    let stale: Vec<&str> = messages(&page).filter(is_stale).collect();
    assert!(stale.is_empty(), "no source has these messages:\n{}", stale.join("\n"));
    let shortest =
        messages(&page).flat_map(parts).filter(|part| !part.is_empty()).map(|part| part.len()).min();
    assert!(messages(&page).count() > 80 && shortest >= Some(3));
}

#[test]
fn strings_are_read_as_they_are_printed() {
    let source =
        "// \"no\"\nlet a = \"one \\\n         two \\\"three\\\"\";\n#[cfg(test)]\nmod tests {\n\"no\"";
    assert_eq!(printed(source), "let a = \"one two \"three\"\";\n");
    assert_eq!(messages("| message |\n| `a … b` | c |\n| --- |\n").collect::<Vec<_>>(), ["a … b"]);
}
