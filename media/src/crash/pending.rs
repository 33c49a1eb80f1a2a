//! The stores to one line that are not durable.

use super::LineBytes;

/// A store to (a part of) one word.
#[derive(Debug, Clone, Copy)]
pub(super) struct Op {
    /// Its place in the order of all stores.
    pub(super) sequence: u64,
    /// The word within the line.
    pub(super) word: u8,
    /// The bits of the word that it sets.
    pub(super) mask: u64,
    /// The word with those bits; the others are zero.
    pub(super) value: u64,
}

impl Op {
    fn apply(self, bytes: &mut LineBytes) {
        let range = self.word as usize * 8..self.word as usize * 8 + 8;
        let old = u64::from_le_bytes(bytes[range.clone()].try_into().expect("a word"));
        bytes[range].copy_from_slice(&(old & !self.mask | self.value & self.mask).to_le_bytes());
    }
}

/// Pending stores of one line.
#[derive(Debug, Clone, Default)]
pub(super) struct Line {
    /// Ordinary stores in order; a crash leaves some first part of them.
    cached: Vec<Op>,
    /// Non-temporal stores with their threads; a crash leaves any of them.
    non_temporal: Vec<(u32, Op)>,
    /// Which ordinary stores a thread's next fence makes durable: those before a sequence number.
    flushed: Vec<(u32, u64)>,
}

/// Which pending stores of a line made it.
#[derive(Debug, Clone)]
pub(super) struct Landed {
    /// So many of the ordinary stores.
    pub(super) cached: usize,
    /// These of the non-temporal ones.
    pub(super) non_temporal: Vec<bool>,
}

impl Line {
    pub(super) fn store(&mut self, non_temporal: Option<u32>, op: Op) {
        match non_temporal {
            Some(thread) => self.non_temporal.push((thread, op)),
            None => self.cached.push(op),
        }
    }

    pub(super) fn flush(&mut self, thread: u32, sequence: u64) {
        match self.flushed.iter_mut().find(|(flusher, _)| *flusher == thread) {
            Some(entry) => entry.1 = sequence,
            None => self.flushed.push((thread, sequence)),
        }
    }

    /// Makes the lines durable that `thread` flushed or stored past the cache.
    pub(super) fn fence(&mut self, thread: u32, bytes: &mut LineBytes) {
        let limit = self.flushed.iter().find(|(flusher, _)| *flusher == thread).map_or(0, |entry| entry.1);
        self.flushed.retain(|(flusher, _)| *flusher != thread);
        let count = self.cached.partition_point(|op| op.sequence < limit);
        let mut durable: Vec<Op> = self.cached.drain(..count).collect();
        self.non_temporal.retain(|(storer, op)| {
            if *storer == thread {
                durable.push(*op);
            }
            *storer != thread
        });
        durable.sort_by_key(|op| op.sequence);
        for op in &durable {
            op.apply(bytes);
            // A store older than a durable store to the same bytes can no longer show.
            let hide = |older: &mut Op| {
                if older.word == op.word && older.sequence < op.sequence {
                    older.mask &= !op.mask;
                }
                older.mask != 0
            };
            self.cached.retain_mut(hide);
            self.non_temporal.retain_mut(|(_, older)| hide(older));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.cached.is_empty() && self.non_temporal.is_empty()
    }

    /// Without the stores that change nothing: the only store to its word, with the value that is there already.
    pub(super) fn reduced(&self, bytes: &LineBytes) -> Line {
        let mut stores = [0; 8];
        for op in self.cached.iter().chain(self.non_temporal.iter().map(|(_, op)| op)) {
            stores[op.word as usize] += 1;
        }
        let matters = |op: &Op| {
            let mut after = *bytes;
            op.apply(&mut after);
            after != *bytes || stores[op.word as usize] > 1
        };
        Line {
            cached: self.cached.iter().filter(|op| matters(op)).copied().collect(),
            non_temporal: self.non_temporal.iter().filter(|(_, op)| matters(op)).copied().collect(),
            flushed: Vec::new(),
        }
    }

    /// The number of combinations of stores that may have landed, or `None` when it is above `limit`.
    pub(super) fn combinations(&self, limit: u64) -> Option<u64> {
        let words = 1u64.checked_shl(self.non_temporal.len() as u32).filter(|words| *words <= limit)?;
        words.checked_mul(self.cached.len() as u64 + 1).filter(|product| *product <= limit)
    }

    /// The combination with this number, counted from 0 (nothing landed).
    pub(super) fn combination(&self, index: u64) -> Landed {
        let words = 1 << self.non_temporal.len();
        let bits = index % words;
        Landed {
            cached: (index / words) as usize,
            non_temporal: (0..self.non_temporal.len()).map(|at| bits >> at & 1 == 1).collect(),
        }
    }

    /// Nothing landed, or everything.
    pub(super) fn nothing_or_all(&self, all: bool) -> Landed {
        Landed {
            cached: if all { self.cached.len() } else { 0 },
            non_temporal: vec![all; self.non_temporal.len()],
        }
    }

    /// The words for which `lands` is true; of the ordinary stores, those before the first for which it is false.
    pub(super) fn by_word(&self, mut lands: impl FnMut(u8) -> bool) -> Landed {
        Landed {
            cached: self.cached.iter().position(|op| !lands(op.word)).unwrap_or(self.cached.len()),
            non_temporal: self.non_temporal.iter().map(|(_, op)| lands(op.word)).collect(),
        }
    }

    /// The stores in the program's order, up to the one with this number.
    pub(super) fn until(&self, last: u64) -> Landed {
        Landed {
            cached: self.cached.partition_point(|op| op.sequence <= last),
            non_temporal: self.non_temporal.iter().map(|(_, op)| op.sequence <= last).collect(),
        }
    }

    /// The numbers of the stores in the order of all.
    pub(super) fn sequences(&self) -> impl Iterator<Item = u64> + '_ {
        self.cached.iter().chain(self.non_temporal.iter().map(|(_, op)| op)).map(|op| op.sequence)
    }

    /// True when a crash may leave `bytes`; see [`super::Replay::allows`].
    pub(super) fn may_become(&self, before: LineBytes, bytes: &LineBytes) -> bool {
        const MAX_COMBINATIONS: u64 = 1 << 16;
        if let Some(count) = self.combinations(MAX_COMBINATIONS) {
            return (0..count).any(|index| self.after(before, &self.combination(index)) == *bytes);
        }
        (0..8u8).all(|word| {
            let range = word as usize * 8..word as usize * 8 + 8;
            let mut values = vec![before];
            let mut ops: Vec<&Op> =
                self.cached.iter().chain(self.non_temporal.iter().map(|(_, op)| op)).collect();
            ops.retain(|op| op.word == word);
            ops.sort_by_key(|op| op.sequence);
            for op in ops {
                for mut value in values.clone() {
                    op.apply(&mut value);
                    if !values.contains(&value) && values.len() < MAX_COMBINATIONS as usize {
                        values.push(value);
                    }
                }
            }
            values.iter().any(|value| value[range.clone()] == bytes[range.clone()])
        })
    }

    /// The line after a crash.
    pub(super) fn after(&self, mut bytes: LineBytes, landed: &Landed) -> LineBytes {
        let cached = self.cached[..landed.cached].iter();
        let chosen = self.non_temporal.iter().zip(&landed.non_temporal).filter(|(_, landed)| **landed);
        let mut ops: Vec<&Op> = cached.chain(chosen.map(|((_, op), _)| op)).collect();
        ops.sort_by_key(|op| op.sequence);
        for op in ops {
            op.apply(&mut bytes);
        }
        bytes
    }
}
