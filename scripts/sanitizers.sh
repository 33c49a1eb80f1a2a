#!/usr/bin/env bash
# ThreadSanitizer and Miri over the code that they can see: docs/design/testing.md lists it. Part of `make soak`. Both
# need parts of a nightly compiler that are not everywhere; missing parts are named and left out.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
. scripts/lib.sh

target=x86_64-unknown-linux-gnu

sysroot=$(rustc +nightly --print sysroot 2>/dev/null)
if [ -z "$sysroot" ]; then
    echo "left out: ThreadSanitizer and Miri (they need a nightly compiler: rustup toolchain install nightly)"
    exit 0
fi

if [ -f "$sysroot/lib/rustlib/src/rust/library/Cargo.toml" ]; then
    # Without a std that is built for it, it takes the counts of every Arc for races.
    sanitized=(env RUSTFLAGS=-Zsanitizer=thread CARGO_TARGET_DIR=target/sanitized
        cargo +nightly test -Zbuild-std --target "$target")
    step ThreadSanitizer "${sanitized[@]}" -p nacre-layout-parts -p nacre-layout-log -p nacre-layout-inplace \
        -p nacre-layout-shadow -p nacre-cache -p nacre-vfs -p nacre-lab --lib
    step "ThreadSanitizer, threads" "${sanitized[@]}" -p nacre-lab --test behaviour linearizable::
else
    echo "left out: ThreadSanitizer (it needs rustup +nightly component add rust-src)"
fi

if cargo +nightly miri --version >/dev/null 2>&1; then
    step Miri env MIRIFLAGS=-Zmiri-many-seeds=0..16 cargo +nightly miri test \
        -p nacre-layout-parts -p nacre-layout-log --lib -- attributes blockmap::tests::far
else
    echo "left out: Miri (it needs rustup +nightly component add miri)"
fi
[ "$failed" -eq 0 ]
