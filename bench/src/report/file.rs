//! Reports as files.

use std::path::Path;

use serde::Deserialize;

use super::schema::{Report, SCHEMA};
use crate::Error;

/// Reads a report of this version of the document or an older one.
pub fn read(path: &Path) -> Result<Report, Error> {
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
    parse(&text).map_err(|error| failed(&error).into())
}

/// The part that every version has.
#[derive(Deserialize)]
struct Head {
    schema: u32,
}

fn parse(text: &str) -> Result<Report, String> {
    // The version comes first: the same names may have another meaning in a newer document.
    let head: Head = serde_json::from_str(text)
        .map_err(|error| format!("no report of nacre bench: {error}; give a file that --json has written"))?;
    if head.schema > SCHEMA {
        return Err(format!(
            "the report has schema {}, and this nacre reads up to {SCHEMA}: use the nacre that wrote it, or a newer one",
            head.schema
        ));
    }
    serde_json::from_str(text).map_err(|error| format!("a report that is damaged: {error}"))
}

/// Replaces a file as a whole: valid contents stay valid at any interruption.
pub fn replace(path: &Path, contents: &str) -> Result<(), Error> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    std::fs::write(&name, contents).map_err(failed)?;
    std::fs::rename(&name, path).map_err(failed)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn what_is_no_report_is_refused_in_words() {
        for (text, expected) in [
            ("", "no report of nacre bench"),
            ("{}", "no report of nacre bench"),
            ("{\"schema\": 1}", "damaged"),
            ("{\"schema\": 4, \"experiments\": \"something new\"}", "reads up to 3"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
