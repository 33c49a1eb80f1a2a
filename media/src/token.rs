//! Order on persistent memory as types.
//!
//! A store is *stored* until its lines are flushed, *flushed* until a fence, and *durable* after it. Each step
//! consumes the token of the step before, so a forgotten flush or fence does not compile, or is at least an unused
//! `#[must_use]`. Tokens are not `Send`: a fence orders the stores of its own core only.

use std::marker::PhantomData;

use nacre_engine::LINE_SIZE;

type NotSend = PhantomData<*const ()>;

/// Bytes that were stored through the CPU cache and not flushed.
#[must_use = "a store is not durable until its lines are flushed and a fence follows"]
#[derive(Debug)]
pub struct Stored {
    pub(crate) offset: u64,
    pub(crate) len: u64,
    not_send: NotSend,
}

/// Stores on their way to media: flushed, or non-temporal, and not fenced.
#[must_use = "flushed stores are not durable until a fence"]
#[derive(Debug)]
pub struct Flushed {
    not_send: NotSend,
}

/// Proof that everything that was flushed before is durable.
#[derive(Debug)]
pub struct Durable {
    not_send: NotSend,
}

impl Stored {
    pub(crate) fn new(offset: u64, len: u64) -> Stored {
        Stored { offset, len, not_send: PhantomData }
    }

    /// One store in place of two, when the second begins behind the first and in the line where that ends.
    pub(crate) fn with(self, next: Stored) -> Result<Stored, (Stored, Stored)> {
        let end = self.offset + self.len;
        if self.len > 0 && next.offset >= end && next.offset / LINE_SIZE == (end - 1) / LINE_SIZE {
            return Ok(Stored::new(self.offset, next.offset + next.len - self.offset));
        }
        Err((self, next))
    }

    /// Gives up on durability: this store is a cache of something durable elsewhere and may be lost in a crash.
    pub fn may_be_lost(self) {}
}

impl Flushed {
    pub(crate) fn new() -> Flushed {
        Flushed { not_send: PhantomData }
    }

    /// Joins two groups of stores that one fence will cover.
    pub fn and(self, _other: Flushed) -> Flushed {
        self
    }

    /// Leaves these stores to a later fence of this thread; until then they may be lost.
    pub fn may_be_lost(self) {}
}

impl Durable {
    pub(crate) fn new() -> Durable {
        Durable { not_send: PhantomData }
    }

    /// The proof for a commit that depends on no earlier store: it validates itself.
    pub fn nothing_before() -> Durable {
        Durable::new()
    }

    /// The same proof for one commit of several that depend on the same stores: durable stores stay so. It proves
    /// nothing of stores after the proof was made.
    pub fn again(&self) -> Durable {
        Durable::new()
    }
}
