//! Bus errors on mapped PM become results.
//!
//! The kernel sends SIGBUS when a mapped page cannot be had: the file was cut shorter, its file system is full, or the
//! hardware found the page damaged. There are three kinds, and the signal's code tells them apart:
//!
//! - An access failed. The handler looks whether the processor was inside one of the routines of [`super::asm`]; if so,
//!   that routine returns the address, and the access becomes an error. Any other access goes to the handler that was
//!   there before.
//! - The kernel found a page damaged that this process has mapped, and no access of it failed yet (`BUS_MCEERR_AO`).
//!   The page is noted ([`noted`]). The interrupted instruction goes on, also inside a routine of ours.
//! - Another process sent the signal with kill(2). It says nothing of a page and is dropped.
//!
//! The last two never reach the handler before ours: that of the Rust runtime takes itself away, and ours with it,
//! for any bus error that it does not know.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use nacre_engine::{Error, Result};

use super::asm;

static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// The code of a damaged page that no access has met yet (asm-generic/siginfo.h).
const BUS_MCEERR_AO: c_int = 5;
/// Where a siginfo has the size of the damaged range, as a power of two, of 16 bits: behind the address.
const ADDRESS_LSB_OFFSET: usize = 24;
/// Damaged pages that are remembered, the last ones.
const NOTED: usize = 64;
const PAGE_SHIFT: u32 = 12;

/// The damaged pages that the kernel told of: the address of each, and in its low bits the power of two that is its
/// size. 0 is a free place.
static PAGES: [AtomicU64; NOTED] = [const { AtomicU64::new(0) }; NOTED];
static NEXT_PAGE: AtomicUsize = AtomicUsize::new(0);

/// Installs the handler, once for the process.
pub(super) fn install() -> Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let result = INSTALLED.get_or_init(|| {
        // The handler before ours must be known before ours can run.
        let before = exchange(None)?;
        PREVIOUS.get_or_init(|| before);
        let mut ours = empty_action();
        ours.sa_sigaction = on_bus_error as *const () as usize;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        exchange(Some(&ours)).map(drop)
    });
    result.map_err(|errno| {
        Error::io("install a handler", "bus errors", std::io::Error::from_raw_os_error(errno))
    })
}

fn empty_action() -> libc::sigaction {
    // SAFETY: all zeros is a valid `sigaction`: no handler, an empty mask, no flags.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// Sets the action of SIGBUS when one is given, and returns the one before.
fn exchange(new: Option<&libc::sigaction>) -> Result<libc::sigaction, i32> {
    let mut before = empty_action();
    let new = new.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: both pointers are null or to live values of the right type.
    if unsafe { libc::sigaction(libc::SIGBUS, new, &mut before) } != 0 {
        return Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL));
    }
    Ok(before)
}

/// The handler: it only reads statics and changes the interrupted context, so it is safe at any instruction.
extern "C" fn on_bus_error(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a valid siginfo and, with SA_SIGINFO, a ucontext_t that nobody else touches.
    let (code, address, registers) = unsafe {
        let context = &mut *context.cast::<libc::ucontext_t>();
        ((*info).si_code, (*info).si_addr() as u64, &mut context.uc_mcontext.gregs)
    };
    // Codes above zero come from the kernel. Others were sent with kill(2) and its relatives.
    if code <= 0 {
        return;
    }
    if code == BUS_MCEERR_AO {
        // SAFETY: a siginfo has 128 bytes, and for a bus error this is where the kernel puts the 16 bits.
        let shift = unsafe { info.byte_add(ADDRESS_LSB_OFFSET).cast::<u16>().read() };
        note(address, u32::from(shift));
        return;
    }
    let rip = registers[libc::REG_RIP as usize] as usize;
    if let Some(exit) = exit_of(rip) {
        registers[libc::REG_RIP as usize] = exit as i64;
        // 0 means success, and a fault without an address must not look like it.
        registers[libc::REG_RDX as usize] = address.max(1) as i64;
        return;
    }
    pass_on(signal, info, context);
}

/// Remembers a damaged page; of too many the oldest is forgotten. Safe in a handler.
fn note(address: u64, shift: u32) {
    let shift = shift.clamp(PAGE_SHIFT, 40);
    let word = address >> shift << shift | u64::from(shift);
    if PAGES.iter().all(|page| page.load(Ordering::Relaxed) != word) {
        PAGES[NEXT_PAGE.fetch_add(1, Ordering::Relaxed) % NOTED].store(word, Ordering::Relaxed);
    }
}

/// The damaged pages in a range of addresses that the kernel told of, in order.
pub(super) fn noted(mapped: Range<u64>) -> Vec<Range<u64>> {
    let page = |page: &AtomicU64| {
        let word = page.load(Ordering::Relaxed);
        let (address, len) = (word >> PAGE_SHIFT << PAGE_SHIFT, 1 << (word & ((1 << PAGE_SHIFT) - 1)));
        let range = address.max(mapped.start)..(address + len).min(mapped.end);
        (word != 0 && !range.is_empty()).then_some(range)
    };
    let mut pages: Vec<Range<u64>> = PAGES.iter().filter_map(page).collect();
    pages.sort_by_key(|range| range.start);
    pages
}

/// Forgets the pages of a range: another device may be mapped there from now on.
pub(super) fn forget(mapped: Range<u64>) {
    for page in &PAGES {
        let word = page.load(Ordering::Relaxed);
        if mapped.contains(&(word >> PAGE_SHIFT << PAGE_SHIFT)) {
            let _ = page.compare_exchange(word, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

/// Where a routine that was interrupted at `rip` leaves, when it is one of ours.
fn exit_of(rip: usize) -> Option<usize> {
    let plain = (&raw const asm::nacre_pm_plain_start).addr()..(&raw const asm::nacre_pm_plain_end).addr();
    let vector = (&raw const asm::nacre_pm_vector_start).addr()..(&raw const asm::nacre_pm_vector_end).addr();
    if plain.contains(&rip) {
        Some((&raw const asm::nacre_pm_plain_fault).addr())
    } else if vector.contains(&rip) {
        Some((&raw const asm::nacre_pm_vector_fault).addr())
    } else {
        None
    }
}

/// Passes an access that is not ours on to the previous handler.
fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let previous = PREVIOUS.get();
    let handler = previous.map_or(libc::SIG_DFL, |action| action.sa_sigaction);
    match handler {
        // The kernel lets nobody ignore a failed access: the instruction would fail for ever.
        libc::SIG_IGN | libc::SIG_DFL => {
            let default = empty_action();
            let _ = exchange(Some(&default));
            // It stays blocked until this handler returns.
            // SAFETY: raise is safe in a handler.
            unsafe { libc::raise(signal) };
        }
        _ if previous.is_some_and(|action| action.sa_flags & libc::SA_SIGINFO != 0) => {
            // SAFETY: the previous owner installed it as a three-argument handler, and it gets what the kernel gave.
            unsafe {
                let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                    std::mem::transmute(handler);
                handler(signal, info, context);
            }
        }
        _ => {
            // SAFETY: the previous owner installed it as a one-argument handler.
            unsafe {
                let handler: extern "C" fn(c_int) = std::mem::transmute(handler);
                handler(signal);
            }
        }
    }
}
