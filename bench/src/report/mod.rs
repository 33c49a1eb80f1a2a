//! What was measured: one document, and what is drawn from it.
//!
//! - [`schema`]: the document, as JSON. Everything else is made from it, at once or later.
//! - [`text`]: for terminals.

pub mod schema;
pub mod text;
