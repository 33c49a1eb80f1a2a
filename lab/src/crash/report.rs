//! What an exploration found.

use std::fmt;

/// Where in an exploration something happened: enough to produce it again with [`super::explore_one`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The crash point of the workload's trace.
    pub point: usize,
    /// The image of that point.
    pub image: u64,
    /// The same within the recovery of that image, when recovery crashed, too.
    pub recovery: Option<(usize, u64)>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "point {}, image {}", self.point, self.image)?;
        match self.recovery {
            Some((point, image)) => write!(f, ", recovery point {point}, image {image}"),
            None => Ok(()),
        }
    }
}

/// A crash after which the file system was not what it must be.
#[derive(Debug, Clone)]
pub struct Violation {
    /// The layout.
    pub subject: &'static str,
    /// The workload, whose name holds its seed when it is random.
    pub workload: String,
    /// The seed of the samples.
    pub seed: u64,
    /// Where.
    pub place: Place,
    /// What was going on, in words.
    pub situation: String,
    /// What was wrong.
    pub problems: Vec<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} / {}, seed {}, {}: {}",
            self.subject, self.workload, self.seed, self.place, self.situation
        )?;
        for problem in self.problems.iter().take(8) {
            writeln!(f, "    {problem}")?;
        }
        if self.problems.len() > 8 {
            writeln!(f, "    and {} more", self.problems.len() - 8)?;
        }
        Ok(())
    }
}

/// How much was tried, and what was found.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Crash points.
    pub points: usize,
    /// Points of which all images were tried.
    pub exhaustive: usize,
    /// Images recovered.
    pub images: u64,
    /// Images that were also emptied, checked and mounted again.
    pub emptied: u64,
    /// Crashes within recovery.
    pub recovery_crashes: u64,
    /// What was wrong.
    pub violations: Vec<Violation>,
}

impl Report {
    /// Adds what another exploration tried and found.
    pub fn add(&mut self, other: Report) {
        self.points += other.points;
        self.exhaustive += other.exhaustive;
        self.images += other.images;
        self.emptied += other.emptied;
        self.recovery_crashes += other.recovery_crashes;
        self.violations.extend(other.violations);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} crash points ({} with all their images), {} images recovered, {} of them emptied and filled, \
             {} crashes within recovery, {} violations",
            self.points,
            self.exhaustive,
            self.images,
            self.emptied,
            self.recovery_crashes,
            self.violations.len()
        )?;
        self.violations.iter().try_for_each(|violation| write!(f, "{violation}"))
    }
}
