//! Media errors in every structure: the operation that meets one fails, everything else goes on, and it is found, named
//! and never used again.

mod both;
mod common;
mod inplace;
mod lanes;
mod log;
mod pool;
mod repairs;
mod shadow;
mod table;
