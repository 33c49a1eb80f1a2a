//! When data moves between persistent memory and disk (paper 002, section 5.1).

/// The utilisation of persistent memory above which cold data moves to disk, in percent:
///
/// ```text
/// 70 % + 5 % * log2(bytes read from it / bytes written to it), within 50 % and 90 %         (1)
/// ```
///
/// Without traffic it is 70 %.
pub fn utilisation_threshold(read: u64, written: u64) -> f64 {
    match (read, written) {
        (0, 0) => MIDDLE,
        (0, _) => LEAST,
        (_, 0) => MOST,
        (read, written) => (MIDDLE + 5.0 * (read as f64 / written as f64).log2()).clamp(LEAST, MOST),
    }
}

/// Bytes that were read and written lately: those of this minute, half of those of the minute before, a quarter of
/// those before that, and so on. Minutes without traffic do not count. Without the decay, recent use would show less
/// and less, the longer a file system is mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Recent {
    began_ms: u64,
    /// Read and written in all when the minute began.
    total: (u64, u64),
    /// The weighted bytes of the minutes before.
    before: (u64, u64),
}

const MINUTE_MS: u64 = 60_000;

impl Recent {
    /// So much was read and written in all until now.
    pub fn look(&mut self, now_ms: u64, total: (u64, u64)) {
        if self.began_ms == 0 {
            self.began_ms = now_ms;
        }
        if now_ms.abs_diff(self.began_ms) >= MINUTE_MS {
            if total != self.total {
                let (read, written) = self.bytes(total);
                (self.total, self.before) = (total, (read / 2, written / 2));
            }
            self.began_ms = now_ms;
        }
    }

    /// Bytes that were read, and written, with so many in all.
    pub fn bytes(&self, total: (u64, u64)) -> (u64, u64) {
        let since = |now: u64, begin: u64| now.saturating_sub(begin);
        let (read, written) = (since(total.0, self.total.0), since(total.1, self.total.1));
        (self.before.0.saturating_add(read), self.before.1.saturating_add(written))
    }
}

const MIDDLE: f64 = 70.0;
const LEAST: f64 = 50.0;
const MOST: f64 = 90.0;

/// Seconds that must agree.
const SECONDS: usize = 4;
/// Above this ratio reads could use more of DRAM.
const TO_DRAM: f64 = 2.0;
/// Below this one they could use more of persistent memory.
const TO_PM: f64 = 0.5;

/// The movement that the balance of reads asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// Read-hot data to disk, with a copy in DRAM.
    ToDram,
    /// Data from disk to persistent memory.
    ToPm,
}

/// The dataflow threshold: bytes read from persistent memory over bytes read from DRAM (2), in each of the last four
/// seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Dataflow {
    /// The requests of the last seconds, the newest first.
    seconds: [Option<Flow>; SECONDS],
}

impl Dataflow {
    /// A second is over in which so much was read. A second without reads asks for nothing.
    pub fn second(&mut self, from_pm: u64, from_dram: u64) -> Option<Flow> {
        let asked = match (from_pm, from_dram) {
            (0, 0) => None,
            (_, 0) => Some(Flow::ToDram),
            (pm, dram) => match pm as f64 / dram as f64 {
                ratio if ratio > TO_DRAM => Some(Flow::ToDram),
                ratio if ratio < TO_PM => Some(Flow::ToPm),
                _ => None,
            },
        };
        self.seconds.rotate_right(1);
        self.seconds[0] = asked;
        if self.seconds.iter().all(|second| *second == asked) { asked } else { None }
    }
}

/// Above this share of all bytes read, the bytes that come from the disk itself are too many. If a disk takes fifty
/// times as long as persistent memory, reads then cost a fifth more.
const OF_DISK: f64 = 1.0 / 256.0;

/// Reads of blocks that are neither in persistent memory nor in DRAM. The [dataflow](Dataflow) counts both DRAM and
/// disks as levels below persistent memory. If few reads wait for a disk, it sees a balance, although these few can
/// take most of the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DiskReads {
    /// Seconds, one behind the other, in which there were too many.
    seconds: usize,
}

impl DiskReads {
    /// Notes a second in which `read` bytes were read, `from_disk` of them from a disk. Returns true if blocks that
    /// are read from the disk are to be placed on persistent memory.
    pub fn second(&mut self, read: u64, from_disk: u64) -> bool {
        let are_too_many = from_disk as f64 > read as f64 * OF_DISK;
        self.seconds = if are_too_many { (self.seconds + 1).min(SECONDS) } else { 0 };
        self.seconds == SECONDS
    }
}

#[cfg(test)]
mod tests {
    use super::{Dataflow, DiskReads, Flow, MINUTE_MS, Recent, utilisation_threshold};

    #[test]
    fn reads_raise_the_threshold_and_writes_lower_it() {
        assert_eq!(utilisation_threshold(0, 0), 70.0);
        assert_eq!(utilisation_threshold(1000, 1000), 70.0);
        assert_eq!(utilisation_threshold(4000, 1000), 80.0);
        assert_eq!(utilisation_threshold(1000, 2000), 65.0);
        for (read, written, bound) in [(1 << 40, 1, 90.0), (7, 0, 90.0), (1, 1 << 40, 50.0), (0, 7, 50.0)] {
            assert_eq!(utilisation_threshold(read, written), bound);
        }
    }

    #[test]
    fn the_threshold_follows_what_is_done_now() {
        let mut recent = Recent::default();
        recent.look(1_700_000_000_000, (3, 4));
        assert_eq!(recent.bytes((5, 6)), (5, 6), "the first minute");
        let at = |minute: u64| 1_700_000_000_000 + minute * MINUTE_MS;
        // An hour of reads only, and then minutes of writes only.
        let threshold = |recent: &Recent, total| {
            let (read, written) = recent.bytes(total);
            utilisation_threshold(read, written)
        };
        (1..=60).for_each(|minute| recent.look(at(minute), (minute << 30, 0)));
        assert_eq!(threshold(&recent, (60 << 30, 0)), 90.0);
        let mut seen = Vec::new();
        for minute in 1..=12 {
            recent.look(at(60 + minute) - 1, (60 << 30, minute << 30));
            recent.look(at(60 + minute), (60 << 30, minute << 30));
            seen.push(threshold(&recent, (60 << 30, minute << 30)));
        }
        assert!(
            (seen[0] - 70.0).abs() < 0.001 && seen.is_sorted_by(|one, next| one >= next) && seen[11] == 50.0,
            "{seen:?}"
        );
        let read = recent.bytes((61 << 30, 12 << 30)).0;
        assert!((1 << 30..=(1 << 30) + (1 << 18)).contains(&read), "an hour of them is {read}");
        // A night in which nobody does anything changes nothing, nor does a clock that is set back.
        let before = recent.bytes((60 << 30, 12 << 30));
        recent.look(at(600), (60 << 30, 12 << 30));
        recent.look(7, (60 << 30, 12 << 30));
        assert_eq!(recent.bytes((60 << 30, 12 << 30)), before);
    }

    #[test]
    fn four_seconds_must_agree() {
        let mut flow = Dataflow::default();
        assert_eq!([(); 3].map(|()| flow.second(300, 100)), [None; 3]);
        assert_eq!(flow.second(201, 100), Some(Flow::ToDram));
        assert_eq!(flow.second(200, 100), None, "2 is not above 2");
        assert_eq!([(); 3].map(|()| flow.second(300, 100)), [None; 3]);
        assert_eq!(flow.second(300, 0), Some(Flow::ToDram), "nothing at all from DRAM");
        assert_eq!([(); 3].map(|()| flow.second(0, 100)), [None; 3]);
        assert_eq!(flow.second(49, 100), Some(Flow::ToPm));
        assert_eq!(flow.second(50, 100), None, "nor 0.5 below 0.5");
    }

    #[test]
    fn few_reads_of_disks_are_too_many_for_four_seconds() {
        let mut reads = DiskReads::default();
        assert_eq!(
            [2, 9, 2, 2, 256].map(|of_disk| reads.second(256, of_disk)),
            [false, false, false, true, true]
        );
        assert_eq!(
            [1, 2, 2, 2, 0].map(|of_disk| reads.second(256, of_disk)),
            [false; 5],
            "one of 256 is not above that"
        );
        assert!(!(0..9).any(|_| reads.second(0, 0)));
    }

    #[test]
    fn seconds_without_reads_ask_for_nothing() {
        let mut flow = Dataflow::default();
        assert!((0..9).all(|_| flow.second(0, 0).is_none()));
        assert_eq!([(); 3].map(|()| flow.second(9, 0)), [None; 3]);
        assert_eq!(flow.second(0, 0), None);
        assert_eq!(flow.second(9, 0), None, "they break the row");
    }
}
