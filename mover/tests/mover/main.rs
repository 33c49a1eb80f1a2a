//! The mover over the log layout and a simulated disk. These are one program, since each would compile the mover over
//! that layout for itself.

mod batches;
mod compaction;
mod full;
mod hours;
mod images;
mod large_writes;
mod read_ahead;
mod reservations;
