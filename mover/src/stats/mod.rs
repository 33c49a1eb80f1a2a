//! Statistics that foreground operations leave: samples of accesses, reads that waited for a disk, and the history that
//! predicts writes and syncs. Policies derive the temperatures of files from the samples.

pub(crate) mod misses;
pub(crate) mod predictors;
pub(crate) mod samples;

use std::sync::Arc;

use crate::settings::Settings;
use crate::stats::misses::Misses;
use crate::stats::predictors::Predictors;
use crate::stats::samples::SampleBuffer;

/// The statistics that foreground operations leave.
pub(crate) struct Stats {
    pub(crate) samples: SampleBuffer,
    /// Reads that waited for a disk.
    pub(crate) misses: Misses,
    pub(crate) predictors: Predictors,
}

impl Stats {
    /// Nothing is known yet.
    pub(crate) fn new(settings: Arc<Settings>) -> Stats {
        Stats {
            samples: SampleBuffer::default(),
            misses: Misses::default(),
            predictors: Predictors::new(settings),
        }
    }
}
