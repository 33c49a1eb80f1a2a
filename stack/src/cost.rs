//! The cost of a line of 64 bytes on this PM and in DRAM: the constants of the benefit model, measured at mount.

use std::hint::black_box;
use std::time::Instant;

use nacre_cache::Latencies;
use nacre_engine::{BLOCK_SIZE, LINE_SIZE, Result};
use nacre_layout_parts::format::SUPERBLOCK_COPY_OFFSET;
use nacre_media::{Emulation, Pm, RealPm};

/// Times that a block is written; the median counts.
const ROUNDS: usize = 15;
/// DRAM that the blocks are spread over, more than a core's own caches hold: those of a pool are cold when they are written.
const SPREAD: usize = 4 << 20;

/// The latencies that the model uses unless they are set. Lpm is the emulated latency, if there is one, and measured
/// otherwise. Ldram is always measured, because DRAM is never emulated. If the PM cannot be written, Lpm is the paper's
/// number.
pub(crate) fn latencies(pm: &RealPm, emulation: Option<&Emulation>) -> Latencies {
    reckon(emulation, measure_dram, || measure_pm(pm))
}

fn reckon(
    emulation: Option<&Emulation>,
    dram_ns: impl FnOnce() -> u32,
    pm_ns: impl FnOnce() -> Result<u32>,
) -> Latencies {
    let emulated = emulation.map(|emulation| emulation.write_latency_ns).filter(|&latency_ns| latency_ns > 0);
    let pm_ns = match emulated {
        Some(latency_ns) => u32::try_from(latency_ns).unwrap_or(u32::MAX),
        None => pm_ns().unwrap_or(Latencies::default().pm_ns),
    };
    Latencies { dram_ns: dram_ns(), pm_ns }
}

/// Writes a block of PM a few times, that of the superblock's copy, with its own content: an interruption changes
/// nothing. No other write may go there meanwhile.
fn measure_pm(pm: &RealPm) -> Result<u32> {
    let mut block = vec![0; BLOCK_SIZE as usize];
    pm.read(SUPERBLOCK_COPY_OFFSET, &mut block)?;
    line_of(|_| {
        let flushed = pm.copy(SUPERBLOCK_COPY_OFFSET, &block)?;
        let _ = pm.fence(flushed);
        Ok(())
    })
}

/// Writes blocks of DRAM, as a pool has them.
fn measure_dram() -> u32 {
    let block = vec![0_u8; BLOCK_SIZE as usize];
    // Written as a whole before, for a page that is new to the process costs something else.
    let mut pool = vec![1_u8; SPREAD];
    let measured = line_of(|round| {
        let start = round * (SPREAD / ROUNDS / block.len() * block.len());
        black_box(&mut pool[start..start + block.len()]).copy_from_slice(black_box(&block));
        Ok(())
    });
    measured.unwrap_or(Latencies::default().dram_ns)
}

/// Nanoseconds for each line, at least one, of a `write_block` that writes a block; its argument is the round.
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
    use nacre_engine::Kind;
    use nacre_layout_parts::format::SUPERBLOCK_COPY_OFFSET;
    use nacre_media::{Emulation, Pm, RealPm};

    use super::{Latencies, latencies, measure_dram, measure_pm, reckon};

    #[test]
    fn slow_memory_is_found_to_be_slow_and_stays_as_it_was() {
        let mut pm = RealPm::in_memory(16 << 20).unwrap();
        let _ = pm.fence(pm.copy(SUPERBLOCK_COPY_OFFSET, &[7; 4096]).unwrap());
        let fast = latencies(&pm, None);
        pm.emulate("latency=800".parse::<Emulation>().unwrap());
        let slow_ns = measure_pm(&pm).unwrap();
        // It spins that long for each line, whoever else has the core.
        assert!(slow_ns >= 700 && fast.dram_ns >= 1 && fast.pm_ns >= 1, "{fast:?}, {slow_ns}");
        // A line of DRAM takes some nanoseconds. Most tries find that, whoever else has the core.
        let mut tries: Vec<u32> = (0..21).map(|_| measure_dram()).collect();
        tries.sort_unstable();
        assert!(tries[10] < 40, "{tries:?}");
        let mut bytes = [0; 4096];
        pm.read(SUPERBLOCK_COPY_OFFSET, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 4096]);
    }

    /// Under emulation DRAM was taken for that of the paper's machine.
    #[test]
    fn what_is_not_emulated_is_measured() {
        let emulation = |text: &str| text.parse::<Emulation>().unwrap();
        let pcm = emulation("latency=300,bandwidth=1G");
        assert_eq!(reckon(Some(&pcm), || 7, || Ok(9)), Latencies { dram_ns: 7, pm_ns: 300 });
        assert_eq!(reckon(None, || 7, || Ok(9)), Latencies { dram_ns: 7, pm_ns: 9 });
        let capped = emulation("bandwidth=1G");
        assert_eq!(reckon(Some(&capped), || 7, || Ok(9)), Latencies { dram_ns: 7, pm_ns: 9 });
        let broken = || Err(Kind::Media.into());
        assert_eq!(reckon(None, || 7, broken), Latencies { dram_ns: 7, ..Latencies::default() });
    }
}
