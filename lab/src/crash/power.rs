//! Simulated PM that can lose its power while a file system is on it.
//!
//! A loss of power drops the contents of the caches: [`PoweredPm::lose_power`] leaves the durable bytes, and sometimes
//! a part of the lines on their way. All stores are recorded for that. The trace is folded into the image every few
//! fences, so that it stays short however long the file system is used.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use nacre_media::crash::{Replay, Sampling};
use nacre_media::sim::Defect;
use nacre_media::{Image, Pm, SimPm, Trace};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Fences after which the trace is folded into the image.
const FENCES: u64 = 64;
/// Number of samples of lines that land, if some do.
const SAMPLES: u64 = 32;

static NOTHING: Trace = Trace { events: Vec::new() };

/// Simulated PM with its power; see the [module](self).
pub struct PoweredPm {
    pm: Arc<SimPm>,
    /// Sizes of the disks beside it, which lose their power with it.
    disks: Vec<u64>,
    caches: Arc<Caches>,
    defect: Option<Defect>,
    mistake: u32,
}

/// The state of the caches of one simulated PM: which bytes are durable, and which are not yet.
struct Caches {
    /// `None` only while a trace is folded in.
    replay: Mutex<Option<Replay<'static>>>,
    fences: AtomicU64,
}

impl Caches {
    /// Folds in a trace that no thread can extend meanwhile, and shows the state then.
    fn take_in<T>(&self, trace: impl FnOnce() -> Trace, show: impl FnOnce(&Replay<'_>) -> T) -> T {
        let mut replay = self.replay.lock().unwrap_or_else(PoisonError::into_inner);
        let trace = trace();
        let after = replay.take().expect("it is put back").then(&trace).then(&NOTHING);
        show(replay.insert(after))
    }
}

impl PoweredPm {
    /// Simulated PM of `len` zero bytes, a multiple of 64.
    pub fn new(len: u64) -> PoweredPm {
        PoweredPm::with_disks(len, &[])
    }

    /// The same with disks of these sizes, which are multiples of 4096; `len` then is one, too.
    pub fn with_disks(len: u64, disks: &[u64]) -> PoweredPm {
        let (pm, caches) = switch_on(Image::zeros(len + disks.iter().sum::<u64>()), disks, None);
        PoweredPm { pm, disks: disks.to_vec(), caches, defect: None, mistake: 0 }
    }

    /// Simulated PM of the same size, all zeros, with the same faults from its next loss of power on.
    #[must_use]
    pub fn fresh(&self) -> PoweredPm {
        PoweredPm {
            defect: self.defect,
            mistake: self.mistake,
            ..PoweredPm::with_disks(self.pm.len(), &self.disks)
        }
    }

    /// The simulated PM, until its power is lost.
    pub fn pm(&self) -> &Arc<SimPm> {
        &self.pm
    }

    /// From the next loss of power on the hardware has this defect.
    pub fn set_defect(&mut self, defect: Option<Defect>) {
        self.defect = defect;
    }

    /// From the next loss of power on the layout makes this mistake; 0 for none.
    pub fn set_mistake(&mut self, mistake: u32) {
        self.mistake = mistake;
    }

    /// The power fails, and comes back: a new simulated PM holds an image that a crash now may leave of this one. Half
    /// of the time that image is only the durable bytes. The choice depends only on earlier stores and fences.
    pub fn lose_power(&mut self) {
        let fences = self.caches.fences.load(Ordering::Relaxed);
        let mut rng = SmallRng::seed_from_u64(fences);
        let choose = |replay: &Replay<'_>| {
            let sampling = Sampling { exhaustive_up_to: 1, samples: SAMPLES, seed: fences };
            let images = replay.images(&sampling);
            // Of the first one nothing has landed.
            let index = if rng.random() { 0 } else { rng.random_range(0..images.len()) };
            replay.crashed(&images.image(index))
        };
        let media = self.caches.take_in(|| self.pm.stop_recording(), choose);
        self.pm.set_fence_hook(None);
        (self.pm, self.caches) = switch_on(media, &self.disks, self.defect);
        self.pm.seed_mistake(self.mistake);
    }
}

/// Simulated PM that holds this image, all of it durable, and records.
fn switch_on(image: Image, disks: &[u64], defect: Option<Defect>) -> (Arc<SimPm>, Arc<Caches>) {
    let pm = Arc::new(match disks {
        // Memory without disks may be of any number of lines.
        [] => SimPm::from_image(&image.to_vec()),
        disks => SimPm::from_image_with_disks(&image.to_vec(), disks),
    });
    let replay = Mutex::new(Some(Replay::new(image, &NOTHING)));
    let caches = Arc::new(Caches { replay, fences: AtomicU64::new(0) });
    let (memory, shared) = (Arc::downgrade(&pm), Arc::clone(&caches));
    let hook = move || {
        let is_due = shared.fences.fetch_add(1, Ordering::Relaxed) % FENCES == FENCES - 1;
        if let Some(pm) = memory.upgrade().filter(|_| is_due) {
            shared.take_in(|| pm.take_trace(), |_| ());
        }
    };
    pm.set_fence_hook(Some(Box::new(hook)));
    pm.start_recording_with(defect);
    (pm, caches)
}

#[cfg(test)]
mod tests {
    use nacre_media::Pm;

    use super::{FENCES, PoweredPm};

    #[test]
    fn what_was_fenced_outlives_the_power_and_the_rest_may_be_lost() {
        let (mut lost, mut kept) = (0, 0);
        for fences in 1..3 * FENCES {
            let mut memory = PoweredPm::new(1 << 16);
            for number in 0..fences {
                memory.pm().fence(memory.pm().copy(number * 64, &[7; 64]).unwrap());
            }
            memory.pm().copy(0, &[8; 64]).unwrap().may_be_lost();
            memory.lose_power();
            let bytes = memory.pm().snapshot();
            assert!(bytes[64..fences as usize * 64].iter().all(|byte| *byte == 7), "after {fences} fences");
            lost += usize::from(bytes[..64] == [7; 64]);
            kept += usize::from(bytes[..64] == [8; 64]);
        }
        assert!(lost > 0 && kept > 0, "{lost} lost, {kept} kept");
    }
}
