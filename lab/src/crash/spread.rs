//! The order of a run that may end early: few images of many workloads, and the rest afterwards.
//!
//! A run with a limit would spend it on the workloads that come first. So it goes through them in three rounds:
//!
//! 1. one workload of each kind, stage by stage, with few images of each crash point;
//! 2. the other workloads, in the same way; first the kinds of those that reached a commit point short of images;
//! 3. all of them in full, first those that reached such a commit point themselves.
//!
//! The order depends on the seed and on the counts of whole rounds. So it does not depend on the number of threads.

use std::collections::{BTreeMap, BTreeSet};

use nacre_media::crash::Sampling;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

use super::report::Report;
use super::subject::Subject;

/// Images that cover a commit point.
pub const COVERED: u64 = 100;

/// Images of a crash point in the first two rounds. Samples so few still have a line that landed in part.
const FEW: u64 = 6;
/// The same where a workload has had few images of a commit point.
const MORE: u64 = 16;
/// So many images of a commit point in one workload are no longer few.
pub(super) const RARE: u64 = 32;

/// At most so many images of a point.
pub(super) fn at_most(sampling: Sampling, most: u64) -> Sampling {
    Sampling {
        exhaustive_up_to: sampling.exhaustive_up_to.min(most),
        samples: sampling.samples.min(most),
        ..sampling
    }
}

/// The images of a point in the first two rounds; `is_rare` when it hits a commit point that has had few.
pub(super) fn few(sampling: Sampling, is_rare: bool) -> Sampling {
    at_most(sampling, if is_rare { MORE } else { FEW })
}

/// The kind of a workload, by its name: the place and the operation that is crashed, without numbers and paths.
pub(super) fn kind_of(name: &str) -> String {
    let (place, operations) = name.split_once(": ").unwrap_or(("", name));
    let last = operations.rsplit("; ").next().unwrap_or_default();
    let words = place.split(' ').chain(last.split(' ')).map(without_number);
    let words: Vec<&str> = words
        .filter(|word| !word.is_empty() && !word.contains(|c: char| c == '/' || c.is_ascii_digit()))
        .collect();
    words.join(" ")
}

/// A word without the numbers that it ends with.
fn without_number(word: &str) -> &str {
    let mut word = word;
    while let Some((before, number)) = word.rsplit_once('-')
        && !number.is_empty()
        && number.bytes().all(|byte| byte.is_ascii_digit())
    {
        word = before;
    }
    word
}

/// Workloads by kind, in an order that a seed gives.
#[derive(Debug)]
pub(super) struct Kinds(Vec<Vec<usize>>);

impl Kinds {
    /// Groups workloads: the number of each, its stage, and its kind there. Kinds of one stage are in a random order.
    pub(super) fn new<K: Ord>(workloads: impl Iterator<Item = (usize, (usize, K))>, seed: u64) -> Kinds {
        let mut groups: BTreeMap<(usize, K), Vec<usize>> = BTreeMap::new();
        for (workload, kind) in workloads {
            groups.entry(kind).or_default().push(workload);
        }
        let mut rng = SmallRng::seed_from_u64(seed ^ 0x59e);
        let mut kinds: Vec<(usize, Vec<usize>)> =
            groups.into_iter().map(|((stage, _), workloads)| (stage, workloads)).collect();
        kinds.iter_mut().for_each(|(_, workloads)| workloads.shuffle(&mut rng));
        kinds.shuffle(&mut rng);
        kinds.sort_by_key(|(stage, _)| *stage);
        Kinds(kinds.into_iter().map(|(_, workloads)| workloads).collect())
    }

    /// One workload of each kind.
    pub(super) fn firsts(&self) -> Vec<usize> {
        self.0.iter().filter_map(|kind| kind.first().copied()).collect()
    }

    /// The others: one of each kind in turn. Kinds whose first one is wanted go before the rest.
    pub(super) fn others(&self, wanted: &BTreeSet<usize>) -> Vec<usize> {
        let is_wanted = |kind: &&Vec<usize>| kind.first().is_some_and(|first| wanted.contains(first));
        let (wanted, rest): (Vec<_>, Vec<_>) = self.0.iter().partition(is_wanted);
        [wanted, rest].iter().flat_map(|kinds| in_turn(kinds)).collect()
    }

    /// All of them. Those that are wanted go before the rest.
    pub(super) fn all(&self, wanted: &BTreeSet<usize>) -> Vec<usize> {
        let all = self.firsts().into_iter().chain(self.others(&BTreeSet::new()));
        let (mut wanted, rest): (Vec<usize>, Vec<usize>) =
            all.partition(|workload| wanted.contains(workload));
        wanted.extend(rest);
        wanted
    }
}

/// The second of each kind, the third of each, and so on.
fn in_turn(kinds: &[&Vec<usize>]) -> Vec<usize> {
    let longest = kinds.iter().map(|kind| kind.len()).max().unwrap_or(0);
    (1..longest).flat_map(|turn| kinds.iter().filter_map(move |kind| kind.get(turn).copied())).collect()
}

/// The commit points that a run is to cover: whether each is one.
pub(super) fn own_points<S: Subject>(subject: &S, is_buffered: bool) -> Vec<bool> {
    let elsewhere = subject.elsewhere(is_buffered);
    let is_own = |name: &&str| !elsewhere.iter().any(|other| other.points.contains(name));
    subject.commit_points().iter().map(is_own).collect()
}

/// Those of some workloads that reach one of the run's own commit points with fewer than [`COVERED`] images in all.
pub(super) fn short_of_images(own: &[bool], all: &Report, each: &BTreeMap<usize, Report>) -> BTreeSet<usize> {
    let is_short = |point: usize| own[point] && all.commit_points[point] < COVERED;
    let reaches = |report: &Report| {
        report.commit_points.iter().enumerate().any(|(point, count)| *count > 0 && is_short(point))
    };
    each.iter().filter(|(_, report)| reaches(report)).map(|(workload, _)| *workload).collect()
}

#[cfg(test)]
mod tests;
