//! A write buffer in DRAM over any layout.
//!
//! [`CacheFs`] wraps a layout whole and implements the same contract, so that nobody can go round what is dirty. It is
//! HiNFS's buffer (paper 000, sections 3 and 4): asynchronous writes go to blocks of 4 KiB in one bounded pool and from
//! there to media in the background; writes that are soon synchronised (the model in `nacre-policy` says which) and
//! synchronous ones go to media at once; reads copy from both and never bring anything into DRAM.
//!
//! # What is promised
//!
//! What was durably acknowledged (by the return of fsync, sync or of a synchronous write) is there after a crash. Of the
//! rest any subset of blocks may be missing; the dirty lines of one block are written by one operation where the layout
//! copies on write. The size, the times and the mapping of a buffered write reach media with or after its data: a file's
//! blocks beyond the size that media knows are written in order, so that its size never shows what was not written.
//! Space is set aside when a write is accepted ([`nacre_engine::Extents::reserve`]), so that it never fails later for
//! want of it.
//!
//! # Ordering
//!
//! The source of a rename over a name, both sides of an exchange, and the target of a link are written before the
//! operation: whoever replaces a file by a rename has the old or the new one after a crash, never an empty one. Whoever
//! replaces it by cutting it to nothing and writing it anew has the new one when that is closed
//! ([`nacre_engine::Data::closed`]). Where something of the file was given up, both fail until a sync has told of it.
//! What a truncation or a synchronous write would make the size show is written before it. Flags that forbid writing,
//! holes, allocation and [`nacre_engine::Extents::resolve`] find everything written, too.
//!
//! # Locks, top to bottom
//!
//! | lock | holds | taken for |
//! | --- | --- | --- |
//! | `Shared::flying` | | shared by who writes some blocks back; alone, for a moment, by who has written everything: flights of files that are gone have space, too |
//! | a shard of `table` | the files that are known | finding one; the layout is asked for its attributes |
//! | `File::blocks` | the index of a file's blocks | shared by reads and by writes that bypass; alone by buffered writes, truncation, sync |
//! | `File::history`, `times`, `flights`, `error`; `Shared::newcomers` | what their names say; what became of new files | a moment |
//! | `Pool::state` | free blocks, the least-recently-written list | a moment |
//! | locks of the layout | | below `File::blocks` and the shard, never below the others |
//!
//! Background writeback holds none of them while it writes: what it took from the index is *in flight*, is read from
//! there as before, and is copied before it is written to again. Who needs a file's blocks to hold still (truncation,
//! sync, synchronous writes over dirty blocks) waits for its flights to land. Each file has an epoch, which truncation,
//! punching and the removal of the last link raise: a flight looks at it before each operation and ends early.
//!
//! A writeback that fails may succeed a little later: the file *rests* for a period of the threads, its data where it is, and
//! only who syncs it tries it meanwhile, and is told what comes of that. After the third attempt in a row a thread gives it
//! up, and nobody else ever does. Whoever finds no room beside files that rest writes past the buffer.
//!
//! Writers wait for room before they take any lock, first for the threads, where there are any and they free so much, and
//! then write back themselves: back-pressure is never an error and needs no thread. A sync of everything does first what the
//! threads do, beside them, and then writes what is left file by file: one large file would keep whoever has it, and the
//! others, for as long as slow memory takes it.

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
pub use fs::CacheFs;
pub use nacre_policy::{Checker, Latencies};
pub use settings::{CacheOptions, CacheStatus, Granularity, Settings};
