//! A log of any content.
//!
//! The first byte chooses the image, two more an inode with a log in pages. What follows are entries of 56 bytes:
//! kind (1), flags (1), lines (1), distance of the sequence number from the one before (1), and the 52 bytes that
//! come after the header. They take the place of what is in the first page of the log, with right checksums.

use nacre_layout_log::anatomy::{Kind, Structure, reseal};
use nacre_media::Pm;

use super::Input;
use super::ground::{grounds, memory};
use super::image::{repair, use_damaged};

const LINE: u64 = 64;
/// Lines of a page that hold entries.
const LINES: u64 = 63;

/// Puts entries into a log, and checks and uses what comes of it.
pub fn any_log(data: &[u8]) {
    let mut input = Input::new(data);
    let ground = &grounds()[usize::from(input.byte() & 1)];
    let pages: Vec<&Structure> =
        ground.structures.iter().filter(|structure| structure.kind == Kind::PageHeader).collect();
    let page = pages[usize::from(input.short()) % pages.len()];
    let write = || {
        let pm = memory(&ground.image);
        let mut input = input;
        let mut line = 1;
        let mut sequence = 16u64;
        pm.poke(page.offset + LINE, &[0; (LINE * LINES) as usize]);
        while line <= LINES && !input.is_empty() {
            let [kind, flags, lines, step] = input.take();
            let lines = (u64::from(lines) % 33).clamp(1, LINES + 1 - line);
            sequence = if step == 0xff { u64::MAX } else { sequence.wrapping_add(u64::from(step)) };
            let mut bytes = [0u8; LINE as usize];
            (bytes[4], bytes[5], bytes[6]) = (kind, flags, lines as u8);
            bytes[8..16].copy_from_slice(&sequence.to_le_bytes());
            bytes[16..].copy_from_slice(&input.take::<48>());
            let offset = page.offset + line * LINE;
            pm.poke(offset, &bytes);
            let entry = page.entry_at(offset, lines * LINE);
            reseal(&*pm, &entry).expect("an entry inside the image");
            line += lines;
        }
        assert!(pm.len() > page.offset);
        pm
    };
    use_damaged(&write());
    repair(&write());
}
