//! A log of any content.
//!
//! The first byte chooses the image and whether there are two logs, as a transaction has. Two more bytes for each log
//! choose a page of it. Entries of 52 bytes follow, with right checksums, which replace the entries of the page:
//!
//! - kind (1);
//! - flags (1);
//! - log and lines (1);
//! - distance of the sequence number from the one before (1; 254 stands for the last permitted one, 255 for the last
//!   one that a word can hold);
//! - the 48 bytes after the header.

use nacre_layout_log::anatomy::{Kind, Structure, reseal};
use nacre_media::SimPm;

use super::Input;
use super::ground::{grounds, memory};
use super::image::{repair, use_damaged};

const LINE: u64 = 64;
/// No entry has a greater number.
const LAST_SEQUENCE: u64 = (1 << 62) - 1;
/// Lines of a page that hold entries.
const LINES: u64 = 63;

/// The page that is written to, and how far it is.
struct Page {
    structure: Structure,
    line: u64,
    sequence: u64,
}

/// Puts entries into a log or two, and checks and uses the result.
pub fn any_log(data: &[u8]) {
    let mut input = Input::new(data);
    let first = input.byte();
    let ground = &grounds()[usize::from(first & 1)];
    let headers: Vec<&Structure> =
        ground.structures.iter().filter(|structure| structure.kind == Kind::PageHeader).collect();
    let mut choose = || *headers[usize::from(input.short()) % headers.len()];
    let mut chosen = vec![choose()];
    if first & 2 != 0 {
        chosen.push(choose());
    }
    let write = || {
        let pm = memory(&ground.image);
        put(&pm, &chosen, input);
        pm
    };
    use_damaged(&write());
    repair(&write());
}

fn put(pm: &SimPm, chosen: &[Structure], mut input: Input<'_>) {
    let mut pages: Vec<Page> =
        chosen.iter().map(|structure| Page { structure: *structure, line: 1, sequence: 16 }).collect();
    for page in &pages {
        pm.poke(page.structure.offset + LINE, &[0; (LINE * LINES) as usize]);
    }
    while !input.is_empty() {
        let [kind, flags, lines, step] = input.take();
        let index = if lines & 0x80 != 0 { pages.len() - 1 } else { 0 };
        let page = &mut pages[index];
        if page.line > LINES {
            break;
        }
        let lines = (u64::from(lines) % 33).clamp(1, LINES + 1 - page.line);
        page.sequence = match step {
            0xff => u64::MAX,
            0xfe => LAST_SEQUENCE,
            _ => page.sequence.wrapping_add(u64::from(step)),
        };
        let mut bytes = [0u8; LINE as usize];
        (bytes[4], bytes[5], bytes[6]) = (kind, flags, lines as u8);
        bytes[8..16].copy_from_slice(&page.sequence.to_le_bytes());
        bytes[16..].copy_from_slice(&input.take::<48>());
        let offset = page.structure.offset + page.line * LINE;
        pm.poke(offset, &bytes);
        reseal(pm, &page.structure.entry_at(offset, lines * LINE)).expect("an entry inside the image");
        page.line += lines;
    }
}
