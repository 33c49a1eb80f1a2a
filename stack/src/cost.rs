//! What a line of 64 bytes costs on this memory and in DRAM: the constants of the benefit model, measured at mount.

use std::hint::black_box;
use std::time::Instant;

use nacre_cache::Latencies;
use nacre_engine::{BLOCK_SIZE, LINE_SIZE, Result};
use nacre_layout_parts::format::SUPERBLOCK_COPY_OFFSET;
use nacre_media::{Pm, RealPm};

/// Times that a block is written; the median counts.
const ROUNDS: usize = 15;
/// DRAM that the blocks are spread over, more than a core's own caches hold: those of a pool are cold when they are written.
const SPREAD: usize = 4 << 20;

/// Writes a block a few times, to memory and to DRAM. On memory that is the block of the superblock's copy, with what it
/// holds: whenever this is interrupted, nothing has changed. Nobody else may write there meanwhile.
pub(crate) fn measure(pm: &RealPm) -> Result<Latencies> {
    let mut block = vec![0; BLOCK_SIZE as usize];
    pm.read(SUPERBLOCK_COPY_OFFSET, &mut block)?;
    let pm_ns = line_of(|_| {
        let flushed = pm.copy(SUPERBLOCK_COPY_OFFSET, &block)?;
        let _ = pm.fence(flushed);
        Ok(())
    })?;
    // Written as a whole before, for a page that is new to the process costs something else.
    let mut pool = vec![1; SPREAD];
    let dram_ns = line_of(|round| {
        let start = round * (SPREAD / ROUNDS / block.len() * block.len());
        black_box(&mut pool[start..start + block.len()]).copy_from_slice(black_box(&block));
        Ok(())
    })?;
    Ok(Latencies { dram_ns, pm_ns })
}

/// Nanoseconds for each line of what writes a block, at least one; it is told the round.
fn line_of(mut write_block: impl FnMut(usize) -> Result<()>) -> Result<u32> {
    let mut times = [0; ROUNDS];
    for (round, time) in times.iter_mut().enumerate() {
        let start = Instant::now();
        write_block(round)?;
        *time = start.elapsed().as_nanos() as u64;
    }
    times.sort_unstable();
    let lines = BLOCK_SIZE / LINE_SIZE;
    Ok(u32::try_from(times[ROUNDS / 2].div_ceil(lines).max(1)).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use nacre_layout_parts::format::SUPERBLOCK_COPY_OFFSET;
    use nacre_media::{Emulation, Pm, RealPm};

    use super::measure;

    #[test]
    fn slow_memory_is_found_to_be_slow_and_stays_as_it_was() {
        let mut pm = RealPm::in_memory(16 << 20).unwrap();
        let _ = pm.fence(pm.copy(SUPERBLOCK_COPY_OFFSET, &[7; 4096]).unwrap());
        let fast = measure(&pm).unwrap();
        pm.emulate("latency=800".parse::<Emulation>().unwrap());
        let slow = measure(&pm).unwrap();
        // It spins that long for each line, whoever else has the core.
        assert!(slow.pm_ns >= 700 && fast.dram_ns >= 1 && fast.pm_ns >= 1, "{fast:?}, {slow:?}");
        let mut bytes = [0; 4096];
        pm.read(SUPERBLOCK_COPY_OFFSET, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 4096]);
    }
}
