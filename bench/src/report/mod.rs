//! Measurements: one document, and the drawings made from it.
//!
//! - [`schema`]: the document, as JSON. Everything else is made from it, at once or later. [`mod@file`]: as a file.
//! - [`text`]: for terminals. [`html`]: a page with charts. [`merge`]: several reports in one.
//! - [`compare`]: the values that got worse from one report to another.
//! - [`command`]: the commands that do so.
//! - [`sample`]: a report with everything in it, for tests.

pub mod command;
pub mod compare;
pub mod file;
pub mod html;
pub mod merge;
pub mod sample;
pub mod schema;
pub mod text;
