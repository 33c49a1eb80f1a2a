//! One page with everything: charts, tables, the machine, and how to repeat each chart.
//!
//! The page is one file, without scripts, and its own policy forbids it to load anything. Light and dark colours, and
//! those for paper, are the style's; each chart has a title, a description and a table. [`view`] makes the content,
//! `templates/report.html` the layout, [`chart`] the drawings.

mod chart;
mod number;
mod view;

use askama::Template;

use super::merge::Document;

/// The page of one or several reports.
pub fn page(document: &Document) -> String {
    let page = view::Page::new(document);
    // Nothing in the template can fail, and a string takes any text.
    page.render().unwrap_or_else(|error| error.to_string())
}
