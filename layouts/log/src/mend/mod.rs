//! Repairs damage, as far as the format proves it.
//!
//! A round reads everything that names lead to and that validates ([`salvage`], [`take`]), decides on the changes
//! ([`tree`]), and makes them ([`write`]). The log of each damaged inode is written anew into free blocks, durable, and
//! one store of the inode's head puts it in the place of the old one. So a crash at any point leaves an inode as it was
//! or as it shall be, and the next repair goes on. An inode that has lost its name gets one in `/lost+found` before
//! anything else is changed.
//!
//! Rounds follow one another until a strict walk (`recover`) finds nothing any more. The report of `fsck -n` comes from
//! rounds on an overlay, which keeps all stores off the device.

mod salvage;
mod survey;
mod take;
mod tree;
mod write;

use std::collections::{BTreeMap, BTreeSet};

use nacre_engine::{BLOCK_SIZE, Block, FileKind, Result};
use nacre_layout_parts::renew::{is_lost, renew, store_word};
use nacre_layout_parts::report::{Repair, in_no_file};
use nacre_layout_parts::scrub::{bad_ranges, untold};
use nacre_media::Pm;
use zerocopy::FromZeros;

use crate::alloc::Run;
use crate::format::{
    BLOCK_INODES, CHUNK_BLOCKS, CHUNK_INODES, INODE_MAGIC, INODE_VERSION, ROOT_INODE, RawInode, inode_seed,
    region,
};
use crate::scan::{Ending, read_inode};
use crate::scrub::hits;
use crate::superblock::Superblock;
use salvage::Grounds;
use survey::{Chunks, Survey, find_chunks};
use take::{Claim, Taken, Taker};
use tree::{Tree, names_of, runs_of};
use write::Writer;

/// Where inodes go that have lost their names.
const LOST_AND_FOUND: &[u8] = b"lost+found";

/// Something that is damaged, and the repair of it.
#[derive(Debug, Clone)]
pub(crate) struct Finding {
    /// The inode that is changed; 0 when it is the table of inodes.
    inode: u64,
    pub(crate) what: String,
    pub(crate) repair: &'static str,
    pub(crate) loses: bool,
    pub(crate) done: bool,
}

impl Finding {
    fn new(inode: u64, what: String, repair: &'static str, loses: bool) -> Finding {
        Finding { inode, what, repair, loses, done: false }
    }
}

/// Knowledge about a file system beyond its tree.
pub(crate) struct Evidence {
    /// The inodes that were in use at a clean unmount, by chunk.
    pub(crate) in_use: Option<BTreeMap<u64, [u64; 4]>>,
}

/// One round. Gives its findings and repairs; nothing is `done` when nothing could be.
pub(crate) fn round<P: Pm>(
    pm: &P,
    superblock: &Superblock,
    ending: Ending,
    evidence: &Evidence,
    level: Repair,
) -> Result<Vec<Finding>> {
    let first_data_block = superblock.first_data_block();
    let seed = superblock.seed();
    let survey = Survey::new(pm, seed, first_data_block);
    let mut chunks = chunks_of(pm, superblock)?;
    let mut findings = mend_chunks(pm, superblock, &mut chunks, &survey, level)?;
    if findings.iter().any(|finding| !finding.done) {
        return Ok(findings); // without the table of inodes nothing else can be judged
    }
    let taken_blocks: std::collections::HashSet<Block> = chunks.blocks().collect();
    let is_taken = |block: Block| block.0 < first_data_block || taken_blocks.contains(&block);
    let taker = Taker::new(Grounds { pm, survey: &survey, ending, is_taken: &is_taken }, &chunks, superblock);
    let mut tree = Tree::new(&taker, &chunks, first_data_block);
    walk_from_root(pm, &mut tree, &survey, seed)?;
    tree.part(first_data_block);
    let mut orphans = Vec::new();
    if level == Repair::All {
        orphans = find_orphans(&mut tree, evidence, seed)?;
    }
    let bad = crate::badblocks::read(pm, superblock)?;
    let mut writer = Writer::new(pm, &tree, &survey, first_data_block, &bad.blocks);
    findings.extend(renew_chunks(pm, superblock, &chunks, &mut writer));
    let first = name_orphans(&mut writer, &mut tree, orphans);
    let mut edits = std::mem::take(&mut tree.edits);
    // Edits that give names come before those that take names away: a crash in between then loses nothing.
    let order: Vec<u64> = first.into_iter().chain(edits.keys().copied()).collect();
    for number in order {
        let Some(edit) = edits.remove(&number) else { continue };
        if edit.loses && level < Repair::All {
            continue;
        }
        // Without room, or on media that refuse, this one stays as it is.
        let done = writer.relog(edit).is_ok();
        tree.findings.iter_mut().filter(|finding| finding.inode == number).for_each(|f| f.done |= done);
    }
    findings.append(&mut tree.findings);
    Ok(findings)
}

/// The chunks of inodes, as the chunk table has them.
fn chunks_of<P: Pm>(pm: &P, superblock: &Superblock) -> Result<Chunks> {
    let max_chunks = superblock.raw.device_blocks.div_ceil(CHUNK_INODES);
    Ok(Chunks::read(pm, superblock.region(region::CHUNK_TABLE)?, superblock.seed(), max_chunks))
}

/// Gives orphans names in lost+found, and notes that as a finding. Gives the directory that must have its log written
/// first.
fn name_orphans<P: Pm>(
    writer: &mut Writer<'_, P>,
    tree: &mut Tree<'_, P>,
    orphans: Vec<Claim>,
) -> Option<u64> {
    let what = match orphans.len() {
        0 => return None,
        1 => "1 inode has no name, or lost it".to_owned(),
        count => format!("{count} inodes have no name, or lost it"),
    };
    let named = writer.name_orphans(tree, orphans);
    let repair = "give them names in /lost+found; some may have been removed before";
    let mut finding = Finding::new(ROOT_INODE, what, repair, false);
    finding.done = named.is_ok();
    tree.findings.push(finding);
    named.ok()
}

/// Describes lines that cannot be read: path and range if they are in a file, and then those that are in none.
pub(crate) fn locate<P: Pm>(
    pm: &P,
    superblock: &Superblock,
    ending: Ending,
    lines: &BTreeSet<u64>,
) -> Result<[Vec<String>; 2]> {
    if lines.is_empty() {
        return Ok([Vec::new(), Vec::new()]);
    }
    let first_data_block = superblock.first_data_block();
    let seed = superblock.seed();
    let survey = Survey::default();
    let chunks = chunks_of(pm, superblock)?;
    let taker =
        Taker::new(Grounds { pm, survey: &survey, ending, is_taken: &|_| false }, &chunks, superblock);
    let mut tree = Tree::new(&taker, &chunks, first_data_block);
    walk_from_root(pm, &mut tree, &survey, seed)?;
    let mut told = BTreeSet::new();
    let mut words = Vec::new();
    for visited in tree.visited.clone() {
        let Ok(taken) = taker.take(visited.claim) else { continue };
        // The index of a salvaged log does not know its pages, and the inode knows its own place.
        let mut hits = hits(&taken.loaded.inode, lines, &mut told);
        for &page in &taken.pages {
            for range in bad_ranges(lines, page.offset()..page.offset() + BLOCK_SIZE, &mut told) {
                hits.push(format!("a media error in its log, at byte {}", range.start));
            }
        }
        if !hits.is_empty() {
            let (path, number) = (tree.path_of(visited), visited.claim.number);
            words.extend(hits.into_iter().map(|hit| format!("{path} (inode {number}): {hit}")));
        }
    }
    Ok([words, untold(lines, &mut told).into_iter().map(in_no_file).collect()])
}

/// Walks from the root; one that is gone is made anew, empty.
fn walk_from_root<P: Pm>(pm: &P, tree: &mut Tree<'_, P>, survey: &Survey, seed: u32) -> Result<()> {
    let Some(address) = tree.chunks.address(ROOT_INODE) else { return Ok(()) };
    let raw = read_inode(pm, address).ok();
    let valid = raw.filter(|raw| raw.is_valid(inode_seed(seed, ROOT_INODE, raw.generation)));
    // mkfs makes the root with generation 1; a repair may have raised it.
    let generation = valid.map_or(survey.greatest_generation(ROOT_INODE).max(1), |raw| raw.generation);
    let claim = Claim { number: ROOT_INODE, generation, kind: FileKind::Directory };
    match tree.taker.take(claim) {
        Ok(taken) => tree.walk(taken, String::new(), false),
        Err(why) => {
            let mut taken =
                new_directory(tree.taker, ROOT_INODE, generation.wrapping_add(1).max(1), ROOT_INODE)?;
            taken.damage.push((format!("the root directory is gone ({why})"), true));
            tree.walk(taken, String::new(), false);
        }
    }
    Ok(())
}

/// A directory that is on its way to media.
fn new_directory<P: Pm>(taker: &Taker<'_, P>, number: u64, generation: u32, parent: u64) -> Result<Taken> {
    let seed = inode_seed(taker.volume_seed, number, generation);
    let mut raw = RawInode::new_zeroed();
    raw.magic = INODE_MAGIC;
    raw.version = INODE_VERSION;
    raw.kind = FileKind::Directory as u8;
    raw.generation = generation;
    raw.mode = if number == ROOT_INODE { 0o755 } else { 0o700 };
    raw.links = 2;
    raw.parent = parent;
    raw.cached_checksum = RawInode::compute_cached_checksum(raw.links, raw.parent, seed);
    raw.checksum = raw.compute_checksum(seed);
    taker.take_new(number, raw)
}

/// Repairs the table of chunks: each word from its damaged value, or from the inodes that prove where their chunk is.
fn mend_chunks<P: Pm>(
    pm: &P,
    superblock: &Superblock,
    chunks: &mut Chunks,
    survey: &Survey,
    level: Repair,
) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    if chunks.list.is_empty() {
        chunks.bad = vec![0]; // there is always the chunk of the root
        chunks.list.push(None);
    }
    if chunks.bad.is_empty() {
        return Ok(findings);
    }
    let first_data_block = superblock.first_data_block();
    let found = find_chunks(pm, superblock.seed(), &chunks.bad, first_data_block);
    findings.extend(end_table(pm, superblock, chunks, survey, found.keys().copied().max())?);
    for &index in &chunks.bad.clone() {
        let parts = found.get(&index).copied().unwrap_or_default();
        let known: Vec<u64> = (0..).zip(parts).filter_map(|(i, b)| b?.0.checked_sub(i)).collect();
        let contiguous = known.first().filter(|first| known.iter().all(|start| start == *first));
        // A part that was never used is all zeros.
        let is_part = |(i, part): (u64, &Option<Block>), start: u64| {
            part.is_some() || write::is_zero(pm, Block(start + i))
        };
        let contiguous = contiguous.filter(|&&start| (0..).zip(&parts).all(|part| is_part(part, start)));
        let whole = contiguous.map(|&start| std::array::from_fn(|i| Block(start + i as u64)));
        let what = format!(
            "inodes {} to {}: the word that leads to them",
            index * CHUNK_INODES,
            (index + 1) * CHUNK_INODES - 1
        );
        let (repair, loses) = match (whole, known.is_empty()) {
            (Some(_), _) => ("write it again: the inodes prove their place", false),
            (None, false) => {
                ("list the blocks that prove themselves, and make empty ones for the others", true)
            }
            (None, true) => ("make empty ones", true),
        };
        let mut finding = Finding::new(0, what, repair, loses);
        if !loses || level == Repair::All {
            let used = |block: u64| {
                chunks.blocks().any(|taken| taken.0 == block)
                    || survey.blocks().any(|page| page.0 == block)
                    || found.values().flatten().flatten().any(|part| part.0 == block)
            };
            let blocks = write::write_chunk(pm, superblock, index, whole, &parts, &used);
            if let Ok((blocks, list)) = blocks {
                chunks.list[index as usize] = Some(blocks);
                chunks.lists.extend(list);
                finding.done = true;
            }
        }
        findings.push(finding);
    }
    Ok(findings)
}

/// Where words at the end of the table are lost, and nothing proves that there were inodes: the table ends before them.
/// That is one finding: a page of the table has 512 words, of which most were never written.
fn end_table<P: Pm>(
    pm: &P,
    superblock: &Superblock,
    chunks: &mut Chunks,
    survey: &Survey,
    proven: Option<u64>,
) -> Result<Option<Finding>> {
    let known = (0..).zip(&chunks.list).filter_map(|(index, blocks)| blocks.is_some().then_some(index)).max();
    let last = known.max(proven).unwrap_or(0).max(survey.greatest_inode() / CHUNK_INODES);
    let ends: Vec<u64> = chunks.bad.iter().copied().filter(|&index| index > last).collect();
    let (Some(&first), Some(&end)) = (ends.first(), ends.last()) else { return Ok(None) };
    let what = format!(
        "inodes {} to {}: the words that lead to them",
        first * CHUNK_INODES,
        (end + 1) * CHUNK_INODES - 1
    );
    let mut finding =
        Finding::new(0, what, "end the table before them: nothing proves that there are any", false);
    // From the end: a crash leaves a table with lost words at its end.
    finding.done = ends
        .iter()
        .rev()
        .all(|&index| write::chunk_word(superblock, index).and_then(|word| store_word(pm, word, 0)).is_ok());
    chunks.bad.retain(|&index| index <= last);
    chunks.list.truncate(last as usize + 1);
    Ok(Some(finding))
}

/// Blocks of inodes that have media errors are made good again, or put elsewhere. Inodes that were lost in them are
/// found as such.
fn renew_chunks<P: Pm>(
    pm: &P,
    superblock: &Superblock,
    chunks: &Chunks,
    writer: &mut Writer<'_, P>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, blocks) in (0..).zip(&chunks.list) {
        let Some(blocks) = blocks else { continue };
        for (at, &block) in blocks.iter().enumerate().filter(|&(_, &block)| is_lost(pm, block)) {
            let first = index * CHUNK_INODES + at as u64 * BLOCK_INODES;
            let what =
                format!("inodes {first} to {}: a media error in block {}", first + BLOCK_INODES - 1, block.0);
            let mut finding =
                Finding::new(0, what, "write it again, with the inodes that can be read", false);
            finding.done = writer.renew(superblock, index, blocks, at).is_ok();
            findings.push(finding);
        }
    }
    findings
}

/// Rewrites blocks of inodes with media errors in them, if no name leads to the lost inodes; gives those that are good
/// again.
pub(crate) fn renew_free_inodes<P: Pm>(pm: &P, superblock: &Superblock) -> Result<BTreeSet<Block>> {
    let chunks = chunks_of(pm, superblock)?;
    let lost = chunks.list.iter().flatten().flatten().copied().filter(|&block| is_lost(pm, block));
    Ok(lost.filter(|&block| renew(pm, block, |_| {}).is_ok()).collect())
}

/// Inodes that exist and have no name: those that were in use at the clean unmount. If names were lost since, all that
/// validate and use nothing that belongs to another.
fn find_orphans<P: Pm>(tree: &mut Tree<'_, P>, evidence: &Evidence, seed: u32) -> Result<Vec<Claim>> {
    if !tree.lost_names && evidence.in_use.is_none() {
        return Ok(Vec::new());
    }
    let mut candidates: BTreeMap<u64, Taken> = BTreeMap::new();
    let mut inner = std::collections::HashSet::new();
    for number in ROOT_INODE + 1..tree.chunks.list.len() as u64 * CHUNK_INODES {
        let proven = evidence.in_use.as_ref().map(|chunks| {
            let bits = chunks.get(&(number / CHUNK_INODES)).copied().unwrap_or_default();
            bits[(number % CHUNK_INODES / 64) as usize] >> (number % 64) & 1 == 1
        });
        if tree.is_known(number) || proven == Some(false) {
            continue;
        }
        let Some(address) = tree.chunks.address(number) else { continue };
        let Ok(raw) = read_inode(tree.taker.grounds.pm, address) else { continue };
        if !raw.is_valid(inode_seed(seed, number, raw.generation)) {
            continue;
        }
        let Some(kind) = FileKind::from_u8(raw.kind) else { continue };
        let Ok(taken) = tree.taker.take(Claim { number, generation: raw.generation, kind }) else { continue };
        let is_whole = taken.damage.is_empty()
            && !tree.may_be_of_an_image(&taken)
            && runs_of(&taken, &tree.taker.reach).into_iter().all(|run| tree.is_free(run));
        if is_whole || proven == Some(true) {
            inner.extend(names_of(&taken).into_iter().map(|name| name.claim.number));
            candidates.insert(number, taken);
        }
    }
    // Inodes that an orphan directory names come with it; of directories in a circle one is as good as another.
    let mut orphans = Vec::new();
    let tops: Vec<u64> = candidates.keys().copied().filter(|number| !inner.contains(number)).collect();
    let rest: Vec<u64> = candidates.keys().copied().filter(|number| inner.contains(number)).collect();
    for number in tops.into_iter().chain(rest) {
        if tree.is_known(number) {
            continue;
        }
        let Some(taken) = candidates.remove(&number) else { continue };
        // Two forgotten inodes may claim the same blocks: the second is older than the first, or wrong.
        if !runs_of(&taken, &tree.taker.reach).into_iter().all(|run| tree.is_free(run)) {
            continue;
        }
        orphans.push(tree::claim_of(&taken));
        tree.walk(taken, format!("/lost+found/#{number}"), true);
    }
    Ok(orphans)
}

/// The block where a run of free blocks is for a chunk.
fn chunk_run(start: u64) -> Run {
    Run { start: Block(start), len: CHUNK_BLOCKS }
}

/// Blocks of the device.
fn device_blocks(pm: &impl Pm) -> u64 {
    pm.len() / BLOCK_SIZE
}
