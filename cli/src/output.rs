//! The output of commands: aligned lines for people, JSON with a schema version for scripts.

use std::fmt::Write as _;
use std::io::{self, Write};

pub(crate) use nacre_engine::size::count;
use serde_json::{Map, Value, json};

use crate::failure::Failure;

/// The version of all JSON output. It grows when a field changes its meaning or is removed. New fields may come at any
/// time.
pub(crate) const SCHEMA: u32 = 1;

/// Prints an object as JSON, with the schema version in front.
pub(crate) fn json(value: Value) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(&versioned(value)).expect("a JSON value can be written");
    text_out(&format!("{text}\n"))
}

/// An object as one line of JSON, with the schema version in front.
pub(crate) fn json_line(value: Value) -> String {
    let text = serde_json::to_string(&versioned(value)).expect("a JSON value can be written");
    format!("{text}\n")
}

fn versioned(value: Value) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("schema".to_owned(), json!(SCHEMA));
    if let Value::Object(fields) = value {
        object.extend(fields);
    }
    object
}

/// Prints text. A closed output is no failure.
pub(crate) fn text_out(text: &str) -> Result<(), Failure> {
    text_is_read(text).map(drop)
}

/// Prints text; false if the output is closed.
pub(crate) fn text_is_read(text: &str) -> Result<bool, Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::new("write", "standard output", error)),
        Ok(()) => Ok(true),
    }
}

/// Lines `name: value` with aligned values.
pub(crate) fn fields(fields: &[(&str, String)]) -> String {
    let width = fields.iter().map(|(name, _)| name.len()).max().unwrap_or(0) + 1;
    let mut text = String::new();
    for (name, value) in fields {
        let name = format!("{name}:");
        writeln!(text, "{name:width$}  {value}").expect("writing to a string");
    }
    text
}

/// A table with a head. Columns whose head ends with a blank are aligned to the left, others to the right.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([head[column].trim_end().chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let cells = cells.iter().enumerate().map(|(column, cell)| {
            let width = widths[column];
            if head[column].ends_with(' ') { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    let mut text = line(head.iter().map(|cell| cell.trim_end()).collect());
    for row in rows {
        text.push_str(&line(row.iter().map(String::as_str).collect()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{fields, table};

    #[test]
    fn values_stand_below_one_another() {
        let text = fields(&[("a", "1".into()), ("long", "2".into())]);
        assert_eq!(text, "a:     1\nlong:  2\n");
    }

    #[test]
    fn columns_are_aligned() {
        let text =
            table(&["name ", "size"], &[vec!["a".into(), "10".into()], vec!["bcdef".into(), "9".into()]]);
        assert_eq!(text, "name   size\na        10\nbcdef     9\n");
    }
}
