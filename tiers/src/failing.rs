//! A tier that fails to take writes: for how long nothing is placed on it.
//!
//! It is tried again after a while, and after twice as long each time that this fails. Times are milliseconds since 1970,
//! about as exact as a tenth of a second.

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
    /// A write or a flush failed, after what was known `before`.
    pub(crate) fn after(before: Option<&Failing>, now_ms: u64, why: String) -> Failing {
        match before {
            // Who had begun before it was out of use.
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
}

#[cfg(test)]
mod tests {
    use super::{FIRST_MS, Failing, LONGEST_MS};

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
}
