//! Bus errors on mapped memory become results.
//!
//! The kernel sends SIGBUS when a mapped page cannot be had: the file was cut shorter, its file system is full, or the
//! hardware found the memory damaged. The handler looks whether the processor was inside one of the routines of
//! [`super::asm`]; if so, that routine returns the address, and the access becomes an error. Any other bus error goes
//! to the handler that was there before.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;

use nacre_engine::{Error, Result};

use super::asm;

static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

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
    // Codes above zero come from the kernel: something was accessed. Others were sent with kill(2).
    if code > 0 {
        let rip = registers[libc::REG_RIP as usize] as usize;
        if let Some(exit) = exit_of(rip) {
            registers[libc::REG_RIP as usize] = exit as i64;
            // 0 means success, and a fault without an address must not look like it.
            registers[libc::REG_RDX as usize] = address.max(1) as i64;
            return;
        }
    }
    pass_on(signal, info, context);
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

/// Does what would have happened without us.
fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let previous = PREVIOUS.get();
    let handler = previous.map_or(libc::SIG_DFL, |action| action.sa_sigaction);
    match handler {
        libc::SIG_IGN => {}
        libc::SIG_DFL => {
            let default = empty_action();
            let _ = exchange(Some(&default));
            // A faulting instruction faults again on return; a signal that was sent must be sent again. It stays
            // blocked until this handler returns.
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
