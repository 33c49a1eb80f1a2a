//! A tier that fails to take writes, or to be read: for how long blocks go elsewhere.
//!
//! The tier is tried again after a pause, which doubles each time that this fails. Writes and reads are told apart: a
//! device that takes no writes can often be read all the same. A tier whose reads fail may take writes, and gets them
//! if no other tier has space. Times are milliseconds since 1970, about as exact as a tenth of a second.

/// The first pause.
const FIRST_MS: u64 = 1000;
/// The longest one.
const LONGEST_MS: u64 = 300_000;

/// Since when it fails, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failing {
    since_ms: u64,
    pause_ms: u64,
    pub(crate) why: String,
}

impl Failing {
    /// The state after a failed operation; `before` is the state before it.
    pub(crate) fn after(before: Option<&Failing>, now_ms: u64, why: String) -> Failing {
        match before {
            // An operation that had begun before it was out of use.
            Some(before) if before.is_out_of_use(now_ms) => Failing { why, ..*before },
            Some(before) => {
                Failing { since_ms: now_ms, pause_ms: (2 * before.pause_ms).min(LONGEST_MS), why }
            }
            None => Failing { since_ms: now_ms, pause_ms: FIRST_MS, why },
        }
    }

    /// Nothing is placed on it yet. A clock that was set back ends that.
    pub(crate) fn is_out_of_use(&self, now_ms: u64) -> bool {
        (self.since_ms..self.since_ms.saturating_add(self.pause_ms)).contains(&now_ms)
    }

    /// True until the pause has been over for twice its length. A failure in that time counts as more of the same.
    fn is_remembered(&self, now_ms: u64) -> bool {
        (self.since_ms..self.since_ms.saturating_add(3 * self.pause_ms)).contains(&now_ms)
    }
}

/// The failures of a tier: of writes and of reads.
#[derive(Debug, Default)]
pub(crate) struct Failings {
    writes: Option<Failing>,
    reads: Option<Failing>,
    /// The last time that reads failed and worked again. A device with one unreadable place fails and works again
    /// whenever that place is read. The pauses grow, so that this is reported less and less often.
    past_reads: Option<Failing>,
}

/// A change to report about a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// It takes no writes.
    WritesFail,
    /// It cannot be read.
    ReadsFail,
    /// It works again.
    Works,
}

impl Failings {
    /// Why it fails.
    pub(crate) fn why(&self) -> Option<&str> {
        self.writes.as_ref().or(self.reads.as_ref()).map(|failing| failing.why.as_str())
    }

    /// Reads fail, so that one that succeeds is news.
    pub(crate) fn reads_fail(&self) -> bool {
        self.reads.is_some()
    }

    /// Nothing is placed on it yet: it would not take it.
    pub(crate) fn is_out_of_use(&self, now_ms: u64) -> bool {
        self.writes.as_ref().is_some_and(|failing| failing.is_out_of_use(now_ms))
    }

    /// Blocks that are placed on the tier now may not be readable later.
    pub(crate) fn is_doubtful(&self, now_ms: u64) -> bool {
        self.reads.as_ref().is_some_and(|failing| failing.is_out_of_use(now_ms))
    }

    /// A write or a flush failed, for this reason, or a flush is over. A success counts only after a flush.
    pub(crate) fn wrote(&mut self, failed: Option<String>, now_ms: u64) -> Option<Change> {
        match failed {
            Some(why) => {
                let is_new = self.why().is_none();
                self.writes = Some(Failing::after(self.writes.as_ref(), now_ms, why));
                is_new.then_some(Change::WritesFail)
            }
            None => {
                take_if_over(&mut self.writes, now_ms)?;
                self.why().is_none().then_some(Change::Works)
            }
        }
    }

    /// A read failed, for this reason, or succeeded.
    pub(crate) fn read(&mut self, failed: Option<String>, now_ms: u64) -> Option<Change> {
        match failed {
            Some(why) => {
                let is_new = self.why().is_none();
                let past = self.past_reads.take().filter(|past| past.is_remembered(now_ms));
                self.reads = Some(Failing::after(self.reads.as_ref().or(past.as_ref()), now_ms, why));
                is_new.then_some(Change::ReadsFail)
            }
            None => {
                self.past_reads = Some(take_if_over(&mut self.reads, now_ms)?);
                self.why().is_none().then_some(Change::Works)
            }
        }
    }
}

/// A tier that is tried again works; one that is not may have had luck.
fn take_if_over(failing: &mut Option<Failing>, now_ms: u64) -> Option<Failing> {
    failing.take_if(|failing| !failing.is_out_of_use(now_ms))
}

#[cfg(test)]
mod tests {
    use super::{Change, FIRST_MS, Failing, Failings, LONGEST_MS};

    #[test]
    fn pauses_grow_and_end() {
        let mut failing = Failing::after(None, 5000, "one".into());
        assert!(failing.is_out_of_use(5000) && failing.is_out_of_use(5000 + FIRST_MS - 1));
        assert!(!failing.is_out_of_use(4999), "the clock was set back");
        // What was under way adds nothing.
        failing = Failing::after(Some(&failing), 5500, "two".into());
        assert!(!failing.is_out_of_use(5000 + FIRST_MS) && failing.why == "two");
        let mut pauses = Vec::new();
        let mut now = 5000 + FIRST_MS;
        for _ in 0..12 {
            failing = Failing::after(Some(&failing), now, String::new());
            let end = (now..).step_by(500).find(|at| !failing.is_out_of_use(*at)).unwrap();
            pauses.push(end - now);
            now = end;
        }
        assert_eq!((pauses[0], pauses[1], *pauses.last().unwrap()), (2 * FIRST_MS, 4 * FIRST_MS, LONGEST_MS));
    }

    #[test]
    fn a_read_says_nothing_of_writes_and_a_write_nothing_of_reads() {
        let mut failings = Failings::default();
        let why = |why: &str| Some(why.to_owned());
        assert_eq!(failings.wrote(why("no writes"), 5000), Some(Change::WritesFail));
        // It is read all the same, for as long as it takes.
        assert_eq!(failings.read(None, 9000), None);
        assert_eq!((failings.why(), failings.reads_fail()), (Some("no writes"), false));
        // That it fails is said once, whatever fails.
        assert_eq!(failings.read(why("no reads"), 9000), None);
        assert!(failings.is_doubtful(9000) && !failings.is_out_of_use(9000), "reads fail");
        assert_eq!(failings.wrote(None, 9500), None);
        assert_eq!((failings.why(), failings.is_doubtful(9500)), (Some("no reads"), true));
        assert_eq!((failings.read(None, 9999), failings.read(None, 10_000)), (None, Some(Change::Works)));
        assert!(failings.why().is_none() && !failings.is_doubtful(10_000));
    }

    /// Most reads of a disk with one bad place succeed, so that each that met it would be news, and the next one, too.
    #[test]
    fn a_place_that_cannot_be_read_is_told_less_and_less_often() {
        let mut failings = Failings::default();
        let mut told = 0;
        // For an hour the place is read again and again, and then another one.
        for at in (1_000_000..4_600_000).step_by(70) {
            told += u32::from(failings.read(Some("here".into()), at).is_some());
            failings.read(None, at + 35);
        }
        assert!((2..30).contains(&told), "{told}");
        // After a long time without it, it is a new one.
        failings.read(None, 9_000_000);
        assert_eq!(failings.read(Some("there".into()), 9_000_000), Some(Change::ReadsFail));
        assert!(!failings.is_doubtful(9_000_000 + FIRST_MS));
    }
}
