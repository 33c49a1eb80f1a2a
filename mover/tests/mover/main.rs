//! The mover over layouts with tiers and a simulated disk. Most tests of batches run over each of these layouts; those of
//! logs, and those whose figures are of logs, over the log layout, and anti-caching over the shadow layout. These are one
//! program, since each would compile the mover over a layout for itself.

/// Makes tests of functions that are generic over the layout: one for each layout with tiers.
macro_rules! over_each_layout {
    ($($test:ident),* $(,)?) => {
        mod log {
            $(
                #[test]
                fn $test() {
                    super::$test::<nacre_layout_log::LogFs<nacre_media::SimPm>>();
                }
            )*
        }

        mod shadow {
            $(
                #[test]
                fn $test() {
                    super::$test::<nacre_layout_shadow::ShadowFs<nacre_media::SimPm>>();
                }
            )*
        }
    };
}

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
