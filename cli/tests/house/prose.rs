//! Measures of the prose, in documents, in doc comments and in messages.

use std::fs;
use std::path::PathBuf;

use crate::{assert_all, files, hold, root, shipped};

/// Words that stand for a subject that has a name.
const FREE_RELATIVES: [&str; 7] = ["who", "whoever", "whose", "what", "whatever", "nobody", "somebody"];
/// Words before "memory" that make it a term of the field.
const KINDS_OF_MEMORY: [&str; 8] =
    ["persistent", "simulated", "emulated", "shared", "cxl", "storage-class", "heap", "mapped"];

/// The prose of a text: paragraphs, without code, headings and tables.
#[derive(Default)]
struct Prose {
    paragraphs: Vec<String>,
}

impl Prose {
    fn of_markdown(text: &str) -> Prose {
        let (mut prose, mut is_code) = (Prose::default(), false);
        let mut paragraph = String::new();
        for line in text.lines() {
            let line = line.trim();
            if line.starts_with("```") {
                is_code = !is_code;
            }
            let is_apart = line.is_empty() || line.starts_with(['#', '|', '<']) || line.starts_with("```");
            let is_item = line.starts_with("- ") || line.starts_with("* ");
            if is_apart || is_item || is_code {
                prose.paragraphs.push(std::mem::take(&mut paragraph));
            }
            if !is_apart && !is_code {
                paragraph.push_str(line.trim_start_matches(['-', '*', ' ']));
                paragraph.push(' ');
            }
        }
        prose.paragraphs.push(paragraph);
        prose
    }

    fn of_comments(source: &str) -> Prose {
        let comment = |line: &str| {
            let line = line.trim_start();
            let text = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
            text.map(str::to_owned).unwrap_or_default()
        };
        Prose::of_markdown(&source.lines().map(comment).collect::<Vec<_>>().join("\n"))
    }

    /// The strings of a source that have a blank, each as a paragraph. A placeholder is one letter, and a semicolon ends
    /// a sentence, because advice follows it.
    fn of_strings(source: &str) -> Prose {
        let is_text = |text: &String| text.contains(' ');
        let paragraph = |text: String| without_placeholders(&text).replace("; ", ". ");
        let texts = strings(source);
        let lines = texts.iter().flat_map(|text| text.split('\n')).map(str::to_owned);
        Prose { paragraphs: lines.filter(is_text).map(paragraph).collect() }
    }

    fn words(&self) -> impl Iterator<Item = String> {
        self.paragraphs.iter().flat_map(|text| words_of(text))
    }

    /// Sentences of more than two words, each with what ends it.
    fn sentences(&self) -> impl Iterator<Item = &str> {
        self.paragraphs
            .iter()
            .flat_map(|text| text.split_inclusive(". "))
            .flat_map(|part| part.split_inclusive("? "))
            .filter(|sentence| words_of(sentence).count() > 2)
    }
}

/// The strings of a source, with continued lines joined. Comments have none.
fn strings(source: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = source;
    while let Some(at) = rest.find(['"', '\'', '/']) {
        let (token, after) = (&rest[at..at + 1], &rest[at + 1..]);
        rest = match token {
            "/" if after.starts_with('/') => after.split_once('\n').map_or("", |(_, next)| next),
            // A quotation mark as a character begins no string.
            "'" if after.starts_with("\"'") || after.starts_with("\\\"'") => &after[after.len().min(3)..],
            "\"" => {
                let end = end_of_string(after);
                let lines = after[..end].split("\\\n").map(str::trim_start);
                found.push(lines.collect::<String>());
                after.get(end + 1..).unwrap_or("")
            }
            _ => after,
        };
    }
    found
}

/// The length of a string up to its quotation mark.
fn end_of_string(text: &str) -> usize {
    let mut is_escaped = false;
    let ends = |(_, letter): &(usize, char)| {
        let ends = *letter == '"' && !is_escaped;
        is_escaped = *letter == '\\' && !is_escaped;
        ends
    };
    text.char_indices().find(ends).map_or(text.len(), |(at, _)| at)
}

/// A text with a letter instead of each part in braces.
fn without_placeholders(text: &str) -> String {
    let parts: Vec<&str> =
        text.split('{').map(|part| part.split_once('}').map_or(part, |(_, after)| after)).collect();
    parts.join("N")
}

fn words_of(text: &str) -> impl Iterator<Item = String> {
    let is_word = |word: &String| word.chars().any(char::is_alphabetic);
    text.split_whitespace()
        .map(|word| word.trim_matches(|letter: char| !letter.is_alphanumeric()).to_lowercase())
        .filter(is_word)
}

struct Measured {
    /// Free relatives in 10,000 words.
    relatives: usize,
    /// Words in ten sentences, on average.
    sentence: usize,
    /// Sentences of more than 40 words.
    long: usize,
    /// Sentences whose subject is a free relative.
    subjects: usize,
    /// "memory" alone.
    memory: usize,
}

fn measure(all: &[Prose]) -> Measured {
    let words: Vec<String> = all.iter().flat_map(Prose::words).collect();
    let sentences: Vec<&str> = all.iter().flat_map(Prose::sentences).collect();
    let relatives = words.iter().filter(|word| FREE_RELATIVES.contains(&word.as_str())).count();
    let lengths: Vec<usize> = sentences.iter().map(|sentence| words_of(sentence).count()).collect();
    let is_subject = |sentence: &&&str| {
        let first = words_of(sentence).next().unwrap_or_default();
        FREE_RELATIVES.contains(&first.as_str()) && !sentence.trim_end().ends_with('?')
    };
    let is_alone = |pair: &&[String]| pair[1] == "memory" && !KINDS_OF_MEMORY.contains(&pair[0].as_str());
    Measured {
        relatives: relatives * 10_000 / words.len().max(1),
        sentence: lengths.iter().sum::<usize>() * 10 / lengths.len().max(1),
        long: lengths.iter().filter(|words| **words > 40).count(),
        subjects: sentences.iter().filter(is_subject).count(),
        memory: words.windows(2).filter(is_alone).count(),
    }
}

fn hold_prose(what: &str, is: &Measured, bounds: [usize; 5]) -> [Option<String>; 5] {
    [
        hold(&format!("{what}: free relatives in 10,000 words"), is.relatives, bounds[0], 40),
        hold(&format!("{what}: words in ten sentences"), is.sentence, bounds[1], 180),
        hold(&format!("{what}: sentences above 40 words"), is.long, bounds[2], 0),
        hold(&format!("{what}: sentences that begin with a free relative"), is.subjects, bounds[3], 0),
        hold(&format!("{what}: \"memory\" alone"), is.memory, bounds[4], 0),
    ]
}

#[test]
fn documents_use_the_terms_of_the_field() {
    let mut paths: Vec<PathBuf> =
        ["README.md", "ARCHITECTURE.md", "CHANGELOG.md"].map(|name| root().join(name)).to_vec();
    paths.extend(files("docs", ".md"));
    let read = |path: &PathBuf| {
        fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let documents: Vec<Prose> = paths.iter().map(|path| Prose::of_markdown(&read(path))).collect();
    assert_all(hold_prose("documents", &measure(&documents), [40, 180, 0, 0, 0]));
}

#[test]
fn doc_comments_use_the_terms_of_the_field() {
    let is_source = |path: &&PathBuf| path.components().any(|part| part.as_os_str() == "src");
    let paths = files("", ".rs");
    let comments: Vec<Prose> =
        paths.iter().filter(is_source).map(|path| Prose::of_comments(&shipped(path))).collect();
    assert_all(hold_prose("doc comments", &measure(&comments), [40, 180, 0, 0, 0]));
}

/// The crates with messages for users of a file system.
const WITH_MESSAGES: [&str; 11] =
    ["cli", "stack", "fuse", "mover", "layouts", "media", "tiers", "cache", "vfs", "engine", "policy"];

#[test]
fn messages_use_the_terms_of_the_field() {
    let is_source = |path: &PathBuf| path.components().any(|part| part.as_os_str() == "src");
    let paths = WITH_MESSAGES.iter().flat_map(|name| files(name, ".rs")).filter(is_source);
    let messages: Vec<Prose> = paths.map(|path| Prose::of_strings(&shipped(&path))).collect();
    assert!(messages.iter().map(|prose| prose.paragraphs.len()).sum::<usize>() > 1000);
    assert_all(hold_prose("messages", &measure(&messages), [40, 180, 0, 0, 0]));
}

#[test]
fn strings_are_found() {
    let source =
        "// \"no\"\nlet a = ('\"', \"one \\\n     two \\\"three\\\"\", 'b');\nlet c = \"{what} is; who\";\n";
    assert_eq!(strings(source), ["one two \\\"three\\\"", "{what} is; who"]);
    assert_eq!(Prose::of_strings(source).paragraphs[1], "N is. who");
}

#[test]
fn prose_is_measured() {
    let text = "# Who is left out\n\nWho finds no memory waits. Persistent memory is there.\n\n```\nwhat\n```\n- Is it? No.\n";
    let prose = Prose::of_markdown(text);
    assert_eq!(prose.sentences().count(), 2, "short ones do not count");
    let is = measure(&[prose]);
    assert_eq!((is.subjects, is.memory, is.long), (1, 1, 0));
    assert_eq!((is.relatives, is.sentence), (10_000 / 12, 45));
    for word in FREE_RELATIVES {
        let source =
            format!("/// {word} it does.\nfn a() {{}}\n    // not this, {word}\n    /// The size of it.\n");
        let is = measure(&[Prose::of_comments(&source)]);
        assert_eq!((is.subjects, is.relatives), (1, 10_000 / 7), "{word}");
    }
}
