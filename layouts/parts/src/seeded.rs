//! Mistakes that a layout makes on purpose.

/// Defines the enum `Mistake` of a layout: each mistake with its words.
///
/// Their numbers, from 1 on, are those that [`Pm::is_seeded`](nacre_media::Pm::is_seeded) is asked for.
#[macro_export]
macro_rules! mistakes {
    ($($(#[$doc:meta])* $name:ident: $words:literal,)*) => {
        /// A mistake.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u32)]
        pub enum Mistake {
            $($(#[$doc])* $name,)*
        }

        impl Mistake {
            /// All of them.
            pub const ALL: &'static [Mistake] = &[$(Mistake::$name),*];

            /// The mistake in words.
            pub fn words(self) -> &'static str {
                match self {
                    $(Mistake::$name => $words,)*
                }
            }

            /// Its number for the media. 0 is none.
            pub fn number(self) -> u32 {
                self as u32 + 1
            }

            /// Whether it shall be made.
            #[inline(always)]
            pub(crate) fn is_made(self, pm: &impl nacre_media::Pm) -> bool {
                pm.is_seeded(self.number())
            }
        }
    };
}
pub use mistakes;
