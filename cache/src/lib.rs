//! A write buffer in DRAM over any layout.
//!
//! [`CacheFs`] wraps a whole layout and implements the same contract, so that no operation misses dirty data. It is
//! HiNFS's buffer (paper 000, sections 3 and 4):
//!
//! - Asynchronous writes go to blocks of 4 KiB in one bounded pool, and from there to media in the background.
//! - Synchronous writes, and writes that are soon synchronised, go to media at once. The model in `nacre-policy`
//!   predicts the latter.
//! - Reads copy from both and never bring data into DRAM.
//!
//! # Guarantees
//!
//! Data is durable after the return of fsync, sync or of a synchronous write. After a crash, any subset of the other
//! blocks may be missing. If the layout copies on write, one operation writes all dirty lines of a block. The size,
//! the times and the mapping of a buffered write reach media with its data or after it. Blocks beyond the size on
//! media are written in order, so that the size never covers unwritten data. An accepted write reserves its space
//! ([`nacre_engine::Extents::reserve`]), so that it never fails later for lack of space.
//!
//! # Ordering
//!
//! The cache writes the source of a rename over a name, both sides of an exchange, and the target of a link before the
//! operation. A rename over a file therefore leaves the old or the new file after a crash, never an empty one. A file
//! that is truncated to zero and rewritten is on media when it is closed ([`nacre_engine::Data::closed`]). If data of
//! the file was dropped, the rename and the close fail until a sync has reported the loss. The cache also writes data
//! that the new size of a truncation or a synchronous write would cover. Flags that forbid writing, holes, allocation
//! and [`nacre_engine::Extents::resolve`] find everything written, too.
//!
//! # Locks, top to bottom
//!
//! | lock | holds | taken for |
//! | --- | --- | --- |
//! | `Shared::flying` | | shared by writebacks of some blocks; exclusive, for a moment, after everything is written, because writebacks in flight of removed files hold space, too |
//! | a shard of `table` | the known files | finding a file; the layout is asked for its attributes |
//! | `File::blocks` | the index of a file's blocks | shared by reads and by writes that bypass; exclusive for buffered writes, truncation, sync |
//! | `File::history`, `times`, `flights`, `error`; `Shared::newcomers` | as named; the new-file predictor | a moment |
//! | `Pool::state` | free blocks, the least-recently-written list | a moment |
//! | locks of the layout | | below `File::blocks` and the shard, never below the others |
//!
//! Background writeback holds none of them while it writes. The blocks that it took from the index are *in flight*:
//! reads still find them there, and a write copies them first. Operations that need a file's blocks unchanged
//! (truncation, sync, synchronous writes over dirty blocks) wait until no writeback of it is in flight. Truncation,
//! punching and the removal of the last link raise the file's epoch. A writeback in flight reads the epoch before each
//! operation and ends early.
//!
//! A writeback that fails may succeed a little later. The file therefore backs off for one period of the threads and
//! keeps its data. Meanwhile only a sync of it tries again, and reports the result. A block whose other bytes cannot be
//! read is hopeless: after the third such failure in a row a thread drops the data, and tells a listener. No other
//! failure and no other operation ever drops any. While all buffer blocks belong to files in backoff, new
//! writes bypass the buffer.
//!
//! Writers wait for free blocks before they take any lock. They first wait for the threads, if these exist and free
//! enough, and then write back themselves. Back-pressure is thus never an error and needs no thread. A sync of
//! everything first shares the work of the threads, and then writes the rest file by file. Otherwise one large file
//! would block its users for as long as a slow device takes.

mod buffer;
mod clock;
mod collect;
mod data;
mod evict;
mod file;
mod flush;
mod fs;
mod index;
mod names;
mod order;
mod over;
mod pool;
mod read;
mod seek;
mod settings;
mod table;
mod write;
mod writeback;

pub use clock::Clock;
pub use file::CacheNode;
pub use fs::{CacheFs, LossListener};
pub use nacre_policy::{Checker, Latencies};
pub use settings::{CacheOptions, CacheStatus, Granularity, Settings};
