//! `nacre bench report` and `nacre bench compare`.

use std::path::{Path, PathBuf};

use clap::Args;

use super::compare::Comparison;
use super::merge::{Document, Named};
use super::{file, html, text};
use crate::{Error, say};

/// Draws reports again, as a page or for the terminal
///
/// Several reports are drawn side by side: the same experiment becomes one chart, in which targets carry the names of
/// their files.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Files that 'nacre bench run --json' wrote
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Write one page with charts that needs no network; - for standard output
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print it; this is the default without --html
    #[arg(long)]
    text: bool,
}

/// Tells what got worse from one report to another
///
/// Points are matched by experiment, target and workload; what only one of the reports has is said, and so is what the runs
/// were asked for where that differs. Sittings are compared, each by its median: rounds of one sitting are not independent.
/// Where a report has fewer than four of them, rounds are, and the line says so. Something is worse or better when chance
/// would show it in 1 of 20 comparisons at most, adjusted for the number of points, and when the whole confidence interval
/// of the ratio is beyond the threshold. The exit status is 1 when something is worse.
#[derive(Debug, Args)]
pub struct CompareArgs {
    /// The report from before
    #[arg(value_name = "A")]
    a: PathBuf,
    /// The report from after
    #[arg(value_name = "B")]
    b: PathBuf,
    /// By how many percent values may get worse: two runs of the same differ, too
    #[arg(long, value_name = "PERCENT", default_value_t = 3.0, value_parser = percent)]
    threshold: f64,
    /// Print the comparison as JSON
    #[arg(long)]
    json: bool,
}

fn percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').trim_end().parse() {
        Ok(percent) if (0.0..=1000.0).contains(&percent) => Ok(percent),
        _ => Err("not a number of percent, from 0 to 1000".to_owned()),
    }
}

impl ReportArgs {
    /// Runs the command.
    pub fn run(&self) -> Result<(), Error> {
        let document = Document::new(read(&self.files)?);
        if let Some(path) = &self.html {
            let page = html::page(&document);
            if path == Path::new("-") { say(&page)? } else { file::replace(path, &page)? }
        }
        if self.text || self.html.is_none() {
            say(&text::document(&document))?;
        }
        Ok(())
    }
}

impl CompareArgs {
    /// Runs the command; an error when something got worse.
    pub fn run(&self) -> Result<(), Error> {
        let runs = read(&[self.a.clone(), self.b.clone()])?;
        let comparison = Comparison::new(&runs[0], &runs[1], self.threshold / 100.0);
        if self.json {
            say(&format!("{}\n", serde_json::to_string_pretty(&comparison)?))?;
        } else {
            say(&comparison.text())?;
        }
        match comparison.worse() {
            0 => Ok(()),
            count => Err(format!("{count} values got worse by more than {} %", self.threshold).into()),
        }
    }
}

/// Reads reports and names each by its file: the stem, or the path where stems are the same.
fn read(files: &[PathBuf]) -> Result<Vec<Named>, Error> {
    let stem = |path: &Path| path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let alone = |path: &Path| files.iter().filter(|other| stem(other) == stem(path)).count() == 1;
    files
        .iter()
        .map(|path| {
            let name = stem(path).filter(|_| alone(path));
            let name = name.unwrap_or_else(|| path.display().to_string());
            Ok(Named { name, report: file::read(path)? })
        })
        .collect()
}

/// Prints.
fn say(text: &str) -> Result<(), Error> {
    Ok(say::out(text)?)
}
