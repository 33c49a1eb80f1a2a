#!/usr/bin/env bash
# Tries out interleavings of threads: small parts under loom, the file system under shuttle; see docs/design/testing.md.
#   scripts/schedules.sh [TEST...]     only these tests of the file system, and not the small parts
# NACRE_SCHEDULES, NACRE_SEED, NACRE_LAYOUT and NACRE_SCHEDULE are for the tests of the file system.
set -euo pipefail
cd "$(dirname "$0")/.."

# cfg command...: cargo with other primitives below everything, and so with a target directory of its own.
cargo_with() {
    local cfg=$1
    shift
    RUSTFLAGS="${RUSTFLAGS:-} --cfg nacre_$cfg" cargo test --target-dir "${CARGO_TARGET_DIR:-target}/$cfg" "$@"
}

if [ $# -eq 0 ]; then
    cargo_with loom -p nacre-layout-parts -p nacre-layout-log -p nacre-media --lib interleavings
fi
cargo_with shuttle -p nacre-lab --test schedules -- "$@"
