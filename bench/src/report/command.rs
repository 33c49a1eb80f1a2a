//! `nacre bench report` and `nacre bench compare`.

use std::path::{Path, PathBuf};

use clap::Args;

use super::compare::Comparison;
use super::merge::{Document, Named};
use super::{file, html, text};
use crate::{Error, say};

/// Examples and exit codes, for the help and the manual page.
const REPORT_MANUAL: &str = "\
Examples:
  nacre bench report --html both.html one.json other.json
      Draws two reports side by side.

See also:
  nacre-bench-run(8), nacre-bench-compare(8)
";

/// Draw reports again, as a page or for the terminal
///
/// Several reports are drawn side by side: the same experiment becomes one chart, in which targets carry the names of
/// their files.
#[derive(Debug, Args)]
#[command(after_long_help = REPORT_MANUAL)]
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

/// Examples and exit codes, for the help and the manual page.
const COMPARE_MANUAL: &str = "\
Examples:
  nacre bench compare before.json after.json
      Names the values that got worse.

Exit status:
  0   no value got worse
  1   a value got worse, or failure
  2   a wrong command line

See also:
  nacre-bench-run(8), nacre-bench-report(8)
";

/// Name the values that got worse from one report to another
///
/// Points are matched by experiment, target and workload. Points that only one report has are named, and so are
/// differences in the options of the runs. Sittings are compared, each by its median: rounds of one sitting are not
/// independent. If a report has fewer than four sittings, rounds are compared, and the line says so.
///
/// A value is worse or better if two conditions hold. Chance would show it in 1 of 20 comparisons at most, adjusted for
/// the number of points. The whole confidence interval of the ratio is beyond the threshold.
#[derive(Debug, Args)]
#[command(after_long_help = COMPARE_MANUAL)]
pub struct CompareArgs {
    /// The report from before
    #[arg(value_name = "A")]
    a: PathBuf,
    /// The report from after
    #[arg(value_name = "B")]
    b: PathBuf,
    /// The part by which values may get worse: two runs of the same program differ, too
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
            count => {
                let values = nacre_engine::size::count(count as u64, "value", "values");
                Err(format!("{values} got worse by more than {} %", self.threshold).into())
            }
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
