//! What people write: kinds of emulated memory, promises.

use nacre_media::{Emulation, Promise};

/// Reads text as every kind of setting. What is accepted is printed and means the same when it is read again.
pub fn any_settings(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(emulation) = text.parse::<Emulation>() {
        assert!(!emulation.to_string().is_empty());
        assert_eq!(text.parse::<Emulation>().ok(), Some(emulation), "{text:?}");
    }
    if let Ok(promise) = text.parse::<Promise>() {
        assert_eq!(promise.to_string().parse::<Promise>().ok(), Some(promise), "{text:?}");
    }
}
