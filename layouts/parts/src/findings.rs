//! Damage that a mount meets while it is used, in words for its log. A scrub has findings of its own.

use nacre_engine::sync::Mutex;
use nacre_engine::sync::atomic::{AtomicBool, Ordering};

/// Findings that wait to be told, at most. More of them are only counted.
const MOST_WAITING: usize = 100;

/// Findings of a mount. Each is told once.
#[derive(Debug, Default)]
pub struct Findings {
    any: AtomicBool,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    words: Vec<String>,
    /// Those beyond the most that wait.
    more: u64,
}

impl Findings {
    /// Adds one. The caller adds none twice.
    pub fn note(&self, words: String) {
        let mut waiting = self.waiting.lock();
        if waiting.words.len() < MOST_WAITING {
            waiting.words.push(words);
        } else {
            waiting.more += 1;
        }
        self.any.store(true, Ordering::Release);
    }

    /// Takes those that were not told yet.
    pub fn take(&self) -> Vec<String> {
        if !self.any.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut waiting = self.waiting.lock();
        self.any.store(false, Ordering::Release);
        let Waiting { mut words, more } = std::mem::take(&mut *waiting);
        if more > 0 {
            words.push(format!("{more} more findings are not told one by one: nacre scrub names all damage"));
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::{Findings, MOST_WAITING};

    #[test]
    fn each_finding_is_told_once_and_many_are_counted() {
        let findings = Findings::default();
        assert_eq!(findings.take(), Vec::<String>::new());
        findings.note("one".to_owned());
        assert_eq!(findings.take(), ["one"]);
        assert_eq!(findings.take(), Vec::<String>::new());
        (0..MOST_WAITING + 7).for_each(|index| findings.note(index.to_string()));
        let told = findings.take();
        assert_eq!((told.len(), &told[0][..]), (MOST_WAITING + 1, "0"));
        assert!(told[MOST_WAITING].starts_with("7 more"), "{}", told[MOST_WAITING]);
        assert_eq!(findings.take(), Vec::<String>::new());
    }
}
