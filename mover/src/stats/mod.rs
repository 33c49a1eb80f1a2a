//! Access statistics: samples that foreground operations leave, the temperatures that background passes derive from
//! them, reads that waited for a disk, and the predictors of writes and syncs.

pub(crate) mod heat;
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
