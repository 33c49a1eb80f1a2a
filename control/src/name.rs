//! The names of the attributes.

/// The beginning of all names.
pub const PREFIX: &str = "system.nacre.";

/// The largest value of an extended attribute, and so the largest answer, in bytes.
pub const ANSWER_MAX: usize = 64 << 10;

/// The beginning of the name of an order's result, behind [`PREFIX`].
const RESULT: &str = "done.";

/// A question to a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// Everything about the mount, as `nacre info` shows it.
    Info,
    /// Its tiers.
    Tiers,
    /// Its mover.
    Mover,
    /// The scrub that runs, or that ran last.
    Scrub,
    /// Access statistics of files.
    Temperature,
    /// Where the blocks of this file are. More of them follow under the same name with `.BLOCK`.
    Extents,
    /// The flags of the mount, which its server adopts from the kernel's table with this question.
    Flags,
}

impl Question {
    const ALL: [Question; 7] = [
        Question::Info,
        Question::Tiers,
        Question::Mover,
        Question::Scrub,
        Question::Temperature,
        Question::Extents,
        Question::Flags,
    ];

    /// The attribute whose value is the answer.
    pub const fn attribute(self) -> &'static str {
        match self {
            Question::Info => "system.nacre.info",
            Question::Tiers => "system.nacre.tiers",
            Question::Mover => "system.nacre.mover",
            Question::Scrub => "system.nacre.scrub",
            Question::Temperature => "system.nacre.temperature",
            Question::Extents => "system.nacre.extents",
            Question::Flags => "system.nacre.flags",
        }
    }

    /// The question of a name without [`PREFIX`].
    pub fn of(name: &str) -> Option<Question> {
        Question::ALL.into_iter().find(|question| is_name(question.attribute(), name))
    }
}

/// A command to a mount, by setting an attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Runs an [`Envelope`](crate::Envelope).
    Order,
    /// Starts a scrub: `start`, or `start BYTES_PER_SECOND`.
    Scrub,
    /// Changes mount options, which are the value.
    Options,
}

impl Command {
    const ALL: [Command; 3] = [Command::Order, Command::Scrub, Command::Options];

    /// The attribute to set.
    pub const fn attribute(self) -> &'static str {
        match self {
            Command::Order => "system.nacre.do",
            Command::Scrub => "system.nacre.scrub",
            Command::Options => "system.nacre.options",
        }
    }

    /// The command of a name without [`PREFIX`].
    pub fn of(name: &str) -> Option<Command> {
        Command::ALL.into_iter().find(|command| is_name(command.attribute(), name))
    }
}

fn is_name(attribute: &str, name: &str) -> bool {
    attribute.strip_prefix(PREFIX) == Some(name)
}

/// The attribute with the result of an order.
pub fn result_attribute(id: &str) -> String {
    format!("{PREFIX}{RESULT}{id}")
}

/// The order whose result a name asks for, without [`PREFIX`].
pub fn result_id(name: &str) -> Option<&str> {
    name.strip_prefix(RESULT)
}

#[cfg(test)]
mod tests {
    use super::{Command, PREFIX, Question, result_attribute, result_id};

    #[test]
    fn each_name_leads_back() {
        let bare = |attribute: &'static str| attribute.strip_prefix(PREFIX).unwrap();
        for question in Question::ALL {
            assert_eq!(Question::of(bare(question.attribute())), Some(question));
        }
        for command in Command::ALL {
            assert_eq!(Command::of(bare(command.attribute())), Some(command));
        }
        assert_eq!((Question::of("do"), Command::of("info"), Question::of("")), (None, None, None));
        let result = result_attribute("a-1");
        assert_eq!(result_id(result.strip_prefix(PREFIX).unwrap()), Some("a-1"));
        assert_eq!(result_id("info"), None);
    }
}
