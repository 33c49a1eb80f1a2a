//! Lines of strace's output: `PID SECONDS call(arguments) = result`, with calls that were interrupted put together.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A call that ended.
#[derive(Debug, PartialEq)]
pub(super) struct Call<'a> {
    pub(super) name: &'a str,
    pub(super) args: Vec<&'a str>,
    /// Its return value; -1 where it failed, none where it did not return.
    pub(super) result: Option<i64>,
    /// The path behind a descriptor that it returned.
    pub(super) result_path: Option<PathBuf>,
    pub(super) error: &'a str,
}

/// The content of a line.
#[derive(Debug)]
pub(super) enum Line {
    /// A call ended: when it began in microseconds, and its text.
    Call { pid: u32, micros: u64, text: String },
    /// A call began that has not ended.
    Begun { pid: u32, micros: u64, text: String },
    /// A process ended.
    Exit { pid: u32 },
    /// Nothing of interest.
    Nothing,
}

/// Reads lines in order.
#[derive(Default)]
pub(super) struct Lines {
    begun: HashMap<u32, (u64, String)>,
}

impl Lines {
    /// None is no line of `strace -f -ttt`.
    pub(super) fn read(&mut self, line: &str) -> Option<Line> {
        if line.trim().is_empty() || line.starts_with("strace: ") {
            return Some(Line::Nothing);
        }
        let (pid, rest) = match line.strip_prefix("[pid ") {
            Some(rest) => rest.trim_start().split_once(']')?,
            None => line.split_once(' ')?,
        };
        let pid = pid.parse().ok()?;
        let (time, text) = rest.trim_start().split_once(' ')?;
        let (seconds, fraction) = time.split_once('.')?;
        let fraction: u64 = format!("{fraction:0<6}").get(..6)?.parse().ok()?;
        let micros = seconds.parse::<u64>().ok()? * 1_000_000 + fraction;
        let text = text.trim();
        if text.starts_with("+++ ") {
            return Some(Line::Exit { pid });
        }
        if text.starts_with("--- ") {
            return Some(Line::Nothing);
        }
        if let Some(text) = text.strip_suffix("<unfinished ...>") {
            self.begun.insert(pid, (micros, text.trim_end().to_owned()));
            return Some(Line::Begun { pid, micros, text: text.to_owned() });
        }
        if text.starts_with("<... ") {
            let (_, end) = text.split_once(" resumed>")?;
            // A call that began before strace did has no beginning.
            let Some((micros, begin)) = self.begun.remove(&pid) else { return Some(Line::Nothing) };
            return Some(Line::Call { pid, micros, text: begin + end });
        }
        Some(Line::Call { pid, micros, text: text.to_owned() })
    }
}

/// Takes a call apart; none where it is none.
pub(super) fn call(text: &str) -> Option<Call<'_>> {
    let open = text.find('(')?;
    let name = &text[..open];
    let (args, rest) = arguments(&text[open + 1..])?;
    let rest = rest.trim_start().strip_prefix('=')?.trim_start();
    let word = rest.split(' ').next()?;
    let number = word.split('<').next()?;
    let result = match number.strip_prefix("0x") {
        Some(digits) => i64::from_str_radix(digits, 16).ok(),
        None => number.parse().ok(),
    };
    let result_path = descriptor(rest).and_then(|(_, path)| path);
    let error = rest.strip_prefix("-1 ").and_then(|rest| rest.split(' ').next()).unwrap_or("");
    Some(Call { name, args, result, result_path, error })
}

/// Splits at the commas that are in no brackets and no text, up to the closing bracket; the text after it is the rest.
fn arguments(text: &str) -> Option<(Vec<&str>, &str)> {
    let bytes = text.as_bytes();
    let (mut args, mut depth, mut begin, mut at) = (Vec::new(), 0, 0, 0);
    while at < bytes.len() {
        match bytes[at] {
            b'"' => {
                at += 1;
                while *bytes.get(at)? != b'"' {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
            }
            // A path behind a descriptor; strace escapes characters that would end it.
            b'<' if at > 0 && bytes.get(at + 1) != Some(&b'<') && bytes[at - 1] != b' ' => {
                at += text[at..].find('>')?;
            }
            b'(' | b'[' | b'{' => depth += 1,
            b')' if depth == 0 => {
                let last = text[begin..at].trim();
                if !last.is_empty() {
                    args.push(last);
                }
                return Some((args, &text[at + 1..]));
            }
            b')' | b']' | b'}' => depth -= 1,
            b',' if depth == 0 => {
                args.push(text[begin..at].trim());
                begin = at + 1;
            }
            _ => {}
        }
        at += 1;
    }
    None
}

/// A descriptor, with the path that strace -y puts behind it: `3</path>`. That of a file without a name is none.
pub(super) fn descriptor(text: &str) -> Option<(i32, Option<PathBuf>)> {
    let (number, rest) = match text.split_once('<') {
        Some((number, rest)) => (number, Some(rest)),
        None => (text.split([' ', ',']).next()?, None),
    };
    let number = if number == "AT_FDCWD" { libc::AT_FDCWD } else { number.parse().ok()? };
    let path = rest.and_then(|rest| rest.split_once('>')).map(|(path, _)| path);
    let path = path.filter(|path| path.starts_with('/')).map(unescape);
    Some((number, path))
}

/// A path in quotes; none when it is cut short, or no text.
pub(super) fn quoted(text: &str) -> Option<PathBuf> {
    text.strip_prefix('"')?.strip_suffix('"').map(unescape)
}

fn unescape(text: &str) -> PathBuf {
    let bytes = text.as_bytes();
    let mut plain = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let byte = bytes[at];
        at += 1;
        if byte != b'\\' || at == bytes.len() {
            plain.push(byte);
            continue;
        }
        let letter = bytes[at];
        at += 1;
        match letter {
            b'n' => plain.push(b'\n'),
            b't' => plain.push(b'\t'),
            b'r' => plain.push(b'\r'),
            b'v' => plain.push(11),
            b'f' => plain.push(12),
            b'0'..=b'7' => {
                let mut value = u32::from(letter - b'0');
                let end = (at + 2).min(bytes.len());
                while at < end && (b'0'..=b'7').contains(&bytes[at]) {
                    value = value * 8 + u32::from(bytes[at] - b'0');
                    at += 1;
                }
                plain.push(value as u8);
            }
            other => plain.push(other),
        }
    }
    PathBuf::from(OsString::from_vec(plain))
}

/// The value of a field in a structure, as `st_size=4096`.
pub(super) fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let at = text.find(&format!("{name}="))? + name.len() + 1;
    text[at..].split([',', '}']).next()
}

/// Puts a path behind the directory that it starts from, and takes `.` and `..` out of it.
pub(super) fn join(dir: &Path, path: &Path) -> PathBuf {
    let mut whole = PathBuf::new();
    for part in dir.join(path).components() {
        match part {
            std::path::Component::ParentDir => drop(whole.pop()),
            std::path::Component::CurDir => {}
            other => whole.push(other),
        }
    }
    whole
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::{Line, Lines, call, descriptor, field, join};

    #[test]
    fn calls_are_taken_apart() {
        let text =
            r#"openat(AT_FDCWD</tmp/a, b>, "x\"y, \303\244", O_RDWR|O_CREAT, 0666) = 3</tmp/a, b/x> <0.1>"#;
        let open = call(text).unwrap();
        assert_eq!((open.name, open.args.len(), open.result), ("openat", 4, Some(3)));
        assert_eq!(super::quoted(open.args[1]).unwrap(), Path::new("x\"y, ä"));
        assert_eq!(descriptor(open.args[0]), Some((libc::AT_FDCWD, Some("/tmp/a, b".into()))));
        assert_eq!(open.result_path, Some("/tmp/a, b/x".into()));
        let stat = call(
            r#"newfstatat(1<pipe:[7]>, "", {st_mode=S_IFREG|0644, st_size=12, ...}, AT_EMPTY_PATH) = 0"#,
        );
        let stat = stat.unwrap();
        assert_eq!(field(stat.args[2], "st_size"), Some("12"));
        assert_eq!(descriptor(stat.args[0]), Some((1, None)));
        let failed = call(r#"unlink("x") = -1 ENOENT (No such file or directory)"#).unwrap();
        assert_eq!((failed.result, failed.error), (Some(-1), "ENOENT"));
        assert_eq!(call("exit_group(0)   = ?").unwrap().result, None);
        assert_eq!(join(Path::new("/a/b"), Path::new("./../c")), PathBuf::from("/a/c"));
    }

    #[test]
    fn interrupted_calls_are_put_together() {
        let mut lines = Lines::default();
        assert!(matches!(
            lines.read("7 10.000001 wait4(-1,  <unfinished ...>"),
            Some(Line::Begun { pid: 7, .. })
        ));
        assert!(matches!(lines.read("8 10.000002 +++ exited with 0 +++"), Some(Line::Exit { pid: 8 })));
        match lines.read("7 10.5 <... wait4 resumed>NULL, 0, NULL) = 8") {
            Some(Line::Call { pid: 7, micros: 10_000_001, text }) => {
                assert_eq!(call(&text).unwrap().result, Some(8));
            }
            other => panic!("{other:?}"),
        }
        assert!(lines.read("total nonsense").is_none());
    }
}
