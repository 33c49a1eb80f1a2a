//! The mover over the log layout, and for anti-caching over the shadow layout, and a simulated disk. These are one
//! program, since each would compile the mover over that layout for itself.

mod anticache;
mod batches;
mod compaction;
mod full;
mod hours;
mod images;
mod in_place;
mod large_writes;
mod mapped;
mod read_ahead;
mod reservations;
