//! Frames of DRAM that several users share: for blocks that wait to be written, and for blocks that are only cached.
//!
//! The number of frames is bounded by the sum of the users' limits ([`Frames::grow`]). One user sets how much of its
//! own limit is idle ([`Frames::set_idle`]). Another user may use that part for blocks that it can drop at once when
//! it is asked to. The two users agree on how they ask; this module only keeps the number.

use nacre_engine::BLOCK_SIZE;
use nacre_engine::sync::Mutex;
use nacre_engine::sync::atomic::{AtomicU64, Ordering};

use crate::dram::Frame;

/// Frames that are allocated at once: a huge page, and as many again as there are, up to 64 MiB.
const LEAST: u64 = 512;
const MOST: u64 = 16384;
/// As many more where there are none left.
const MORE: u64 = 16;
/// Frames that are still read from, of which one look for a frame tries so many.
const TRIES: usize = 64;

/// See the [module](self).
#[derive(Debug, Default)]
pub struct Frames {
    state: Mutex<State>,
    /// Blocks within the limit of one user that it leaves to the others.
    idle: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// Frames that there should be at the most.
    most: u64,
    /// All that there are, and how many of them go as soon as they are given back.
    count: u64,
    excess: u64,
    /// Those that are not in use.
    spare: Vec<Frame>,
    /// Those that were given back while a reader still had them.
    lent: Vec<Frame>,
    /// Those that were never used.
    fresh: Vec<Frame>,
}

impl Frames {
    /// Raises the limit of a user by so many blocks.
    pub fn grow(&self, blocks: u64) {
        let mut state = self.state.lock();
        state.most += blocks;
        state.excess = state.excess.saturating_sub(blocks);
    }

    /// Lowers the limit of a user by so many blocks, which it has given back. Their DRAM returns to the kernel.
    pub fn shrink(&self, blocks: u64) {
        let mut state = self.state.lock();
        state.most = state.most.saturating_sub(blocks);
        let State { most, count, fresh, .. } = &mut *state;
        // They never took DRAM.
        let unused = fresh.len().min(count.saturating_sub(*most) as usize);
        fresh.truncate(fresh.len() - unused);
        *count -= unused as u64;
        state.excess = state.count.saturating_sub(state.most);
        state.trim();
    }

    /// Sets how many blocks of one user are idle. The user raises the number only after it has stopped using the
    /// blocks. After it lowers the number, it asks the others for the blocks before it uses them.
    pub fn set_idle(&self, blocks: u64) {
        // A user that gives up frames reads this behind a lock that all users of idle frames take.
        self.idle.store(blocks, Ordering::Relaxed);
    }

    /// Blocks that may be used beside one's own.
    pub fn idle(&self) -> u64 {
        self.idle.load(Ordering::Relaxed)
    }

    /// A frame that nobody has; its bytes are anything. A frame that was used before is preferred, because it is in
    /// the CPU caches.
    ///
    /// The limit is not strict: a caller beyond it gets as many more as are still read from, or are being given back.
    pub fn take(&self) -> Frame {
        self.state.lock().take()
    }

    /// Several of them.
    pub fn take_some(&self, count: usize, into: &mut impl Extend<Frame>) {
        if count > 0 {
            let mut state = self.state.lock();
            into.extend((0..count).map(|_| state.take()));
        }
    }

    /// They are not used any more.
    pub fn give_back(&self, frames: impl IntoIterator<Item = Frame>) {
        let mut state = self.state.lock();
        for mut frame in frames {
            let is_spare = frame.get_mut().is_some();
            if is_spare { state.spare.push(frame) } else { state.lent.push(frame) }
        }
        state.trim();
    }

    /// Frames that were used before and are not in use now.
    pub fn spare(&self) -> u64 {
        let state = self.state.lock();
        (state.spare.len() + state.lent.len()) as u64
    }

    /// Bytes of DRAM that all of them take.
    pub fn bytes(&self) -> u64 {
        let state = self.state.lock();
        (state.count - state.fresh.len() as u64) * BLOCK_SIZE
    }
}

impl State {
    fn take(&mut self) -> Frame {
        if let Some(frame) = self.spare.pop() {
            return frame;
        }
        if let Some(at) = self.lent.iter_mut().take(TRIES).position(|frame| frame.get_mut().is_some()) {
            return self.lent.swap_remove(at);
        }
        if self.fresh.is_empty() {
            let count = self.most.saturating_sub(self.count).min(self.count.clamp(LEAST, MOST)).max(MORE);
            self.fresh = Frame::allocate(count as u32);
            self.count += count;
            self.fresh.reverse();
        }
        let Some(frame) = self.fresh.pop() else { unreachable!("some were allocated") };
        frame
    }

    /// Returns the DRAM of excess frames.
    fn trim(&mut self) {
        while self.excess > 0
            && let Some(frame) = self.spare.pop()
        {
            frame.discard();
            self.count -= 1;
            self.excess -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use nacre_engine::BLOCK_SIZE;

    use super::{Frame, Frames, LEAST};

    fn take(frames: &Frames, count: u64) -> Vec<Frame> {
        let mut taken = Vec::new();
        frames.take_some(count as usize, &mut taken);
        taken
    }

    /// A frame that was given back while it was still read from was lost before, and one more was allocated for it.
    #[test]
    fn frames_are_used_again_when_nobody_reads_from_them() {
        let frames = Frames::default();
        let most = LEAST + 10;
        frames.grow(most);
        let taken = take(&frames, most);
        let read: Vec<Frame> = taken[..20].to_vec();
        frames.give_back(taken);
        assert_eq!((frames.bytes(), frames.spare()), (most * BLOCK_SIZE, most));
        let mut taken = take(&frames, most - 20);
        assert!(taken.iter_mut().all(|frame| frame.get_mut().is_some()), "shared with nobody");
        assert_eq!(frames.bytes(), most * BLOCK_SIZE);
        let mut more = take(&frames, 20);
        assert!(more.iter_mut().all(|frame| frame.get_mut().is_some()));
        assert_eq!(frames.bytes(), (most + 20) * BLOCK_SIZE, "what is read from is replaced");
        drop(read);
        frames.give_back(taken.into_iter().chain(more));
        frames.give_back(take(&frames, 1));
        assert_eq!(take(&frames, most).len() as u64, most);
        assert!(frames.bytes() <= (most + 20) * BLOCK_SIZE, "and used again");
    }

    #[test]
    fn memory_that_nobody_may_have_any_more_is_given_up() {
        let frames = Frames::default();
        frames.grow(100);
        frames.grow(20);
        let mut taken = take(&frames, 120);
        taken.iter_mut().for_each(|frame| frame.get_mut().expect("nobody else has it").fill(1));
        let kept = taken.split_off(70);
        frames.give_back(taken);
        frames.shrink(100);
        // What is in use goes when it is given back.
        assert_eq!(frames.bytes(), 50 * BLOCK_SIZE);
        frames.give_back(kept);
        assert_eq!((frames.bytes(), frames.spare()), (20 * BLOCK_SIZE, 20));
    }
}
