//! The machine routines that touch mapped persistent memory, and nothing else does.
//!
//! They keep to rules that let the bus error handler ([`super::fault`]) end any of them at any instruction: they push
//! nothing, use no callee-saved register, and report through `rdx`: 0 for success, else the address that faulted. The
//! handler sets `rip` to the exit of the region and `rdx` to the address. There are two regions, because only the
//! code that uses the upper halves of vector registers may execute `vzeroupper`.
//!
//! Arguments come in `rdi` (destination), `rsi` (source) and `rdx` (bytes or lines).

/// The result of a routine, in `rax` and `rdx`.
#[repr(C)]
pub(super) struct Outcome {
    /// The loaded word, where the routine loads one.
    pub(super) value: u64,
    /// 0, or the address that the hardware refused.
    pub(super) fault: u64,
}

/// A routine with destination, source and a number of bytes or lines.
pub(super) type Copy = unsafe extern "sysv64" fn(*mut u8, *const u8, usize) -> Outcome;
/// A routine with an address, an ignored argument and a number of lines.
pub(super) type Sweep = unsafe extern "sysv64" fn(*mut u8, usize, usize) -> Outcome;

unsafe extern "sysv64" {
    /// Loads the aligned word at the first argument.
    pub(super) fn nacre_pm_load(at: *const u8) -> Outcome;
    /// Stores through the cache in ascending order, by aligned words where they are whole.
    pub(super) fn nacre_pm_store(to: *mut u8, from: *const u8, len: usize) -> Outcome;

    pub(super) fn nacre_pm_read_sse2(to: *mut u8, from: *const u8, len: usize) -> Outcome;
    pub(super) fn nacre_pm_read_avx(to: *mut u8, from: *const u8, len: usize) -> Outcome;
    /// With `rep movsb` from the length on at which it is measured to be faster (1.5 KiB).
    pub(super) fn nacre_pm_read_avx_erms(to: *mut u8, from: *const u8, len: usize) -> Outcome;

    /// Copies aligned words past the cache.
    pub(super) fn nacre_pm_copy_words(to: *mut u8, from: *const u8, words: usize) -> Outcome;
    pub(super) fn nacre_pm_copy_sse2(to: *mut u8, from: *const u8, lines: usize) -> Outcome;
    pub(super) fn nacre_pm_copy_avx2(to: *mut u8, from: *const u8, lines: usize) -> Outcome;
    pub(super) fn nacre_pm_copy_avx512(to: *mut u8, from: *const u8, lines: usize) -> Outcome;

    pub(super) fn nacre_pm_zero_sse2(to: *mut u8, unused: usize, lines: usize) -> Outcome;
    pub(super) fn nacre_pm_zero_avx512(to: *mut u8, unused: usize, lines: usize) -> Outcome;

    pub(super) fn nacre_pm_flush_clwb(at: *mut u8, unused: usize, lines: usize) -> Outcome;
    pub(super) fn nacre_pm_flush_clflushopt(at: *mut u8, unused: usize, lines: usize) -> Outcome;
    pub(super) fn nacre_pm_flush_clflush(at: *mut u8, unused: usize, lines: usize) -> Outcome;

    /// First instruction of the plain region, its end, and its exit for faults; then the same of the vector region.
    pub(super) static nacre_pm_plain_start: u8;
    pub(super) static nacre_pm_plain_end: u8;
    pub(super) static nacre_pm_plain_fault: u8;
    pub(super) static nacre_pm_vector_start: u8;
    pub(super) static nacre_pm_vector_end: u8;
    pub(super) static nacre_pm_vector_fault: u8;
}

// The plain region: no register wider than 128 bits.
std::arch::global_asm!(
    r#"
    .pushsection .text.nacre_pm_plain,"ax",@progbits
    .p2align 6
    .globl nacre_pm_plain_start
    .hidden nacre_pm_plain_start
nacre_pm_plain_start:

    .globl nacre_pm_load
    .hidden nacre_pm_load
nacre_pm_load:
    mov rax, [rdi]
    xor edx, edx
    ret

    .p2align 4
    .globl nacre_pm_store
    .hidden nacre_pm_store
nacre_pm_store:
    test rdx, rdx
    jz 9f
    // Single bytes up to the first whole word.
2:  test dil, 7
    jz 3f
    mov al, [rsi]
    mov [rdi], al
    inc rsi
    inc rdi
    dec rdx
    jnz 2b
    jmp 9f
3:  sub rdx, 32
    jb 5f
4:  mov rax, [rsi]
    mov rcx, [rsi + 8]
    mov r8, [rsi + 16]
    mov r9, [rsi + 24]
    mov [rdi], rax
    mov [rdi + 8], rcx
    mov [rdi + 16], r8
    mov [rdi + 24], r9
    add rsi, 32
    add rdi, 32
    sub rdx, 32
    jae 4b
5:  add rdx, 24
    js 7f
6:  mov rax, [rsi]
    mov [rdi], rax
    add rsi, 8
    add rdi, 8
    sub rdx, 8
    jns 6b
7:  add rdx, 8
    jz 9f
8:  mov al, [rsi]
    mov [rdi], al
    inc rsi
    inc rdi
    dec rdx
    jnz 8b
9:  xor edx, edx
    ret

    .p2align 4
    .globl nacre_pm_read_sse2
    .hidden nacre_pm_read_sse2
nacre_pm_read_sse2:
    cmp rdx, 16
    jb 4f
    cmp rdx, 32
    ja 2f
    movdqu xmm0, [rsi]
    movdqu xmm1, [rsi + rdx - 16]
    movdqu [rdi], xmm0
    movdqu [rdi + rdx - 16], xmm1
    xor edx, edx
    ret
    // More than 32 bytes: the last 32 are loaded first and stored last.
2:  movdqu xmm4, [rsi + rdx - 32]
    movdqu xmm5, [rsi + rdx - 16]
    lea rcx, [rdi + rdx - 32]
3:  movdqu xmm0, [rsi]
    movdqu xmm1, [rsi + 16]
    movdqu [rdi], xmm0
    movdqu [rdi + 16], xmm1
    add rsi, 32
    add rdi, 32
    cmp rdi, rcx
    jb 3b
    movdqu [rcx], xmm4
    movdqu [rcx + 16], xmm5
    xor edx, edx
    ret
4:  cmp edx, 8
    jb 5f
    mov rax, [rsi]
    mov rcx, [rsi + rdx - 8]
    mov [rdi], rax
    mov [rdi + rdx - 8], rcx
    xor edx, edx
    ret
5:  cmp edx, 4
    jb 6f
    mov eax, [rsi]
    mov ecx, [rsi + rdx - 4]
    mov [rdi], eax
    mov [rdi + rdx - 4], ecx
    xor edx, edx
    ret
6:  test edx, edx
    jz 8f
7:  mov al, [rsi + rdx - 1]
    mov [rdi + rdx - 1], al
    dec edx
    jnz 7b
8:  ret

    .p2align 4
    .globl nacre_pm_copy_words
    .hidden nacre_pm_copy_words
nacre_pm_copy_words:
    test rdx, rdx
    jz 3f
2:  mov rax, [rsi]
    movnti [rdi], rax
    add rsi, 8
    add rdi, 8
    dec rdx
    jnz 2b
3:  ret

    .p2align 4
    .globl nacre_pm_copy_sse2
    .hidden nacre_pm_copy_sse2
nacre_pm_copy_sse2:
    test rdx, rdx
    jz 3f
2:  movdqu xmm0, [rsi]
    movdqu xmm1, [rsi + 16]
    movdqu xmm2, [rsi + 32]
    movdqu xmm3, [rsi + 48]
    movntdq [rdi], xmm0
    movntdq [rdi + 16], xmm1
    movntdq [rdi + 32], xmm2
    movntdq [rdi + 48], xmm3
    add rsi, 64
    add rdi, 64
    dec rdx
    jnz 2b
3:  ret

    .p2align 4
    .globl nacre_pm_zero_sse2
    .hidden nacre_pm_zero_sse2
nacre_pm_zero_sse2:
    test rdx, rdx
    jz 3f
    pxor xmm0, xmm0
2:  movntdq [rdi], xmm0
    movntdq [rdi + 16], xmm0
    movntdq [rdi + 32], xmm0
    movntdq [rdi + 48], xmm0
    add rdi, 64
    dec rdx
    jnz 2b
3:  ret

    .p2align 4
    .globl nacre_pm_flush_clwb
    .hidden nacre_pm_flush_clwb
nacre_pm_flush_clwb:
    test rdx, rdx
    jz 3f
2:  clwb [rdi]
    add rdi, 64
    dec rdx
    jnz 2b
3:  ret

    .p2align 4
    .globl nacre_pm_flush_clflushopt
    .hidden nacre_pm_flush_clflushopt
nacre_pm_flush_clflushopt:
    test rdx, rdx
    jz 3f
2:  clflushopt [rdi]
    add rdi, 64
    dec rdx
    jnz 2b
3:  ret

    .p2align 4
    .globl nacre_pm_flush_clflush
    .hidden nacre_pm_flush_clflush
nacre_pm_flush_clflush:
    test rdx, rdx
    jz 3f
2:  clflush [rdi]
    add rdi, 64
    dec rdx
    jnz 2b
3:  ret

    .globl nacre_pm_plain_end
    .hidden nacre_pm_plain_end
nacre_pm_plain_end:
    .globl nacre_pm_plain_fault
    .hidden nacre_pm_plain_fault
nacre_pm_plain_fault:
    ret
    .popsection
"#
);

// The vector region.
std::arch::global_asm!(
    r#"
    .pushsection .text.nacre_pm_vector,"ax",@progbits
    .p2align 6
    .globl nacre_pm_vector_start
    .hidden nacre_pm_vector_start
nacre_pm_vector_start:

    .globl nacre_pm_read_avx_erms
    .hidden nacre_pm_read_avx_erms
nacre_pm_read_avx_erms:
    cmp rdx, 1536
    jb nacre_pm_read_avx
    mov rcx, rdx
    rep movsb
    xor edx, edx
    ret

    .p2align 4
    .globl nacre_pm_read_avx
    .hidden nacre_pm_read_avx
nacre_pm_read_avx:
    cmp rdx, 32
    jb 6f
    cmp rdx, 64
    ja 2f
    vmovdqu ymm0, [rsi]
    vmovdqu ymm1, [rsi + rdx - 32]
    vmovdqu [rdi], ymm0
    vmovdqu [rdi + rdx - 32], ymm1
    vzeroupper
    xor edx, edx
    ret
2:  vmovdqu ymm4, [rsi + rdx - 64]
    vmovdqu ymm5, [rsi + rdx - 32]
    cmp rdx, 128
    ja 3f
    vmovdqu ymm0, [rsi]
    vmovdqu ymm1, [rsi + 32]
    vmovdqu [rdi], ymm0
    vmovdqu [rdi + 32], ymm1
    vmovdqu [rdi + rdx - 64], ymm4
    vmovdqu [rdi + rdx - 32], ymm5
    vzeroupper
    xor edx, edx
    ret
    // More than 128 bytes: the last 128 are loaded first and stored last.
3:  vmovdqu ymm6, [rsi + rdx - 128]
    vmovdqu ymm7, [rsi + rdx - 96]
    lea rcx, [rdi + rdx - 128]
4:  vmovdqu ymm0, [rsi]
    vmovdqu ymm1, [rsi + 32]
    vmovdqu ymm2, [rsi + 64]
    vmovdqu ymm3, [rsi + 96]
    vmovdqu [rdi], ymm0
    vmovdqu [rdi + 32], ymm1
    vmovdqu [rdi + 64], ymm2
    vmovdqu [rdi + 96], ymm3
    sub rsi, -128
    sub rdi, -128
    cmp rdi, rcx
    jb 4b
    vmovdqu [rcx], ymm6
    vmovdqu [rcx + 32], ymm7
    vmovdqu [rcx + 64], ymm4
    vmovdqu [rcx + 96], ymm5
    vzeroupper
    xor edx, edx
    ret
6:  jmp nacre_pm_read_sse2

    .p2align 4
    .globl nacre_pm_copy_avx2
    .hidden nacre_pm_copy_avx2
nacre_pm_copy_avx2:
    test rdx, rdx
    jz 3f
2:  vmovdqu ymm0, [rsi]
    vmovdqu ymm1, [rsi + 32]
    vmovntdq [rdi], ymm0
    vmovntdq [rdi + 32], ymm1
    add rsi, 64
    add rdi, 64
    dec rdx
    jnz 2b
    vzeroupper
3:  ret

    .p2align 4
    .globl nacre_pm_copy_avx512
    .hidden nacre_pm_copy_avx512
nacre_pm_copy_avx512:
    sub rdx, 4
    jb 3f
2:  vmovdqu64 zmm0, [rsi]
    vmovdqu64 zmm1, [rsi + 64]
    vmovdqu64 zmm2, [rsi + 128]
    vmovdqu64 zmm3, [rsi + 192]
    vmovntdq [rdi], zmm0
    vmovntdq [rdi + 64], zmm1
    vmovntdq [rdi + 128], zmm2
    vmovntdq [rdi + 192], zmm3
    add rsi, 256
    add rdi, 256
    sub rdx, 4
    jae 2b
3:  add rdx, 4
    jz 5f
4:  vmovdqu64 zmm0, [rsi]
    vmovntdq [rdi], zmm0
    add rsi, 64
    add rdi, 64
    dec rdx
    jnz 4b
5:  vzeroupper
    ret

    .p2align 4
    .globl nacre_pm_zero_avx512
    .hidden nacre_pm_zero_avx512
nacre_pm_zero_avx512:
    test rdx, rdx
    jz 3f
    vpxord zmm0, zmm0, zmm0
2:  vmovntdq [rdi], zmm0
    add rdi, 64
    dec rdx
    jnz 2b
    vzeroupper
3:  ret

    .globl nacre_pm_vector_end
    .hidden nacre_pm_vector_end
nacre_pm_vector_end:
    .globl nacre_pm_vector_fault
    .hidden nacre_pm_vector_fault
nacre_pm_vector_fault:
    vzeroupper
    ret
    .popsection
"#
);

/// The routines that this CPU runs best, chosen once.
#[derive(Debug)]
pub(super) struct Routines {
    /// Copies out of the mapping: bytes.
    pub(super) read: Copy,
    /// Copies past the cache: whole lines to a line's start.
    pub(super) copy: Copy,
    /// Zeroes past the cache: whole lines from a line's start.
    pub(super) zero: Sweep,
    /// Starts writing back lines.
    pub(super) flush: Sweep,
    /// The instructions in words, for people.
    pub(super) name: &'static str,
}

impl Routines {
    /// The best of this CPU.
    pub(super) fn detect() -> Routines {
        // CPUID leaf 7: EBX bit 9 says fast `rep movsb`, bit 23 clflushopt, bit 24 clwb.
        let leaf7 = if std::arch::x86_64::__cpuid(0).eax >= 7 {
            std::arch::x86_64::__cpuid_count(7, 0).ebx
        } else {
            0
        };
        let avx512 = is_x86_feature_detected!("avx512f");
        let avx2 = is_x86_feature_detected!("avx2");
        let read: Copy = match (avx2, leaf7 & 1 << 9 != 0) {
            (true, true) => nacre_pm_read_avx_erms,
            (true, false) => nacre_pm_read_avx,
            (false, _) => nacre_pm_read_sse2,
        };
        let (copy, zero): (Copy, Sweep) = match (avx512, avx2) {
            (true, _) => (nacre_pm_copy_avx512, nacre_pm_zero_avx512),
            (false, true) => (nacre_pm_copy_avx2, nacre_pm_zero_sse2),
            (false, false) => (nacre_pm_copy_sse2, nacre_pm_zero_sse2),
        };
        let (flush, flush_name): (Sweep, usize) = match (leaf7 & 1 << 24 != 0, leaf7 & 1 << 23 != 0) {
            (true, _) => (nacre_pm_flush_clwb, 0),
            (false, true) => (nacre_pm_flush_clflushopt, 1),
            (false, false) => (nacre_pm_flush_clflush, 2),
        };
        const NAMES: [[&str; 3]; 3] = [
            ["AVX-512, clwb", "AVX-512, clflushopt", "AVX-512, clflush"],
            ["AVX2, clwb", "AVX2, clflushopt", "AVX2, clflush"],
            ["SSE2, clwb", "SSE2, clflushopt", "SSE2, clflush"],
        ];
        let width = if avx512 {
            0
        } else if avx2 {
            1
        } else {
            2
        };
        Routines { read, copy, zero, flush, name: NAMES[width][flush_name] }
    }
}
