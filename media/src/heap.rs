//! The heap of this process.

/// Gives the system back the free DRAM of the heap, also between blocks in use. To be called after much of it was
/// freed: it takes some milliseconds, in which other threads may wait to allocate.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    glibc::trim();
}

#[cfg(target_env = "gnu")]
mod glibc {
    use std::sync::Once;

    /// Free bytes at the end of a thread's part of the heap that stay there. Otherwise this limit grows with the
    /// largest piece that was ever freed, up to 64 MiB. `malloc_trim` gives back the end of the main thread's part
    /// only.
    const KEPT_AT_THE_END: libc::c_int = 256 << 10;

    static FIRST: Once = Once::new();

    pub(super) fn trim() {
        // SAFETY: it takes numbers; what it changes is one word, which others only compare with.
        FIRST.call_once(|| unsafe {
            libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_AT_THE_END);
        });
        // SAFETY: it takes a number and touches only what nobody has.
        unsafe {
            libc::malloc_trim(0);
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_is_in_use_stays() {
        let of = |piece: usize| vec![piece as u8; 24 + piece % 1500];
        let mut pieces: Vec<_> = (0..20_000).map(|piece| Some(of(piece))).collect();
        pieces.iter_mut().enumerate().filter(|(piece, _)| piece % 7 != 0).for_each(|(_, gone)| *gone = None);
        super::trim_heap();
        super::trim_heap();
        for (piece, bytes) in pieces.iter().enumerate() {
            assert!(bytes.as_ref().is_none_or(|bytes| *bytes == of(piece)), "piece {piece}");
        }
    }
}
