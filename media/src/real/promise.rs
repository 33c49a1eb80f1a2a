//! The persistence domain of a device: the failures that fenced data survives.

use std::fmt;
use std::str::FromStr;

use nacre_engine::{Error, Kind};

/// The failure that fenced bytes survive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Promise {
    /// None: DRAM of this process.
    None,
    /// The death of the process, on a device that was slowed down to behave like persistent memory.
    Emulated,
    /// Against the death of the process; a power failure or a crash of the kernel may lose or mix anything.
    ProcessDeath,
    /// Against power loss.
    PowerLoss,
}

impl Promise {
    /// True when this promise is at least as much as `required`. Emulation weakens nothing and adds nothing.
    pub fn satisfies(self, required: Promise) -> bool {
        self.rank() >= required.rank()
    }

    fn rank(self) -> u8 {
        match self {
            Promise::None => 0,
            Promise::Emulated | Promise::ProcessDeath => 1,
            Promise::PowerLoss => 2,
        }
    }

    /// One word for scripts: `none`, `emulated`, `process` or `power`.
    pub fn as_str(self) -> &'static str {
        match self {
            Promise::None => "none",
            Promise::Emulated => "emulated",
            Promise::ProcessDeath => "process",
            Promise::PowerLoss => "power",
        }
    }

    /// A sentence for people.
    pub fn explanation(self) -> &'static str {
        match self {
            Promise::None => "in the heap only: everything is lost with the process",
            Promise::Emulated => "emulated PM: safe against the death of the process, not against power loss",
            Promise::ProcessDeath => "safe against the death of the process, not against power loss",
            Promise::PowerLoss => "safe against power loss",
        }
    }
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Promise {
    type Err = Error;

    fn from_str(text: &str) -> Result<Promise, Error> {
        [Promise::None, Promise::Emulated, Promise::ProcessDeath, Promise::PowerLoss]
            .into_iter()
            .find(|promise| promise.as_str() == text)
            .ok_or_else(|| {
                Error::new(Kind::InvalidInput)
                    .object(format!("persistence domain \"{text}\""))
                    .advice("use none, emulated, process or power")
            })
    }
}

#[cfg(test)]
mod tests {
    use super::Promise;

    #[test]
    fn more_satisfies_less_and_words_are_read_back() {
        let all = [Promise::None, Promise::Emulated, Promise::ProcessDeath, Promise::PowerLoss];
        for promise in all {
            assert!(Promise::PowerLoss.satisfies(promise));
            assert_eq!(promise.as_str().parse::<Promise>().unwrap(), promise);
        }
        assert!(!Promise::ProcessDeath.satisfies(Promise::PowerLoss));
        assert!(!Promise::Emulated.satisfies(Promise::PowerLoss));
        assert!(Promise::Emulated.satisfies(Promise::ProcessDeath));
        assert!(!Promise::None.satisfies(Promise::ProcessDeath));
        assert!("powr".parse::<Promise>().is_err());
    }
}
