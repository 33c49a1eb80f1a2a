#!/usr/bin/env bash
# make test: lints, then every test of the workspace, the whole-system tests on a mount among them.
# Ends with one line "N passed, N failed". What cannot run here (no root, no /dev/fuse) is named as left out.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
. scripts/lib.sh

started=$SECONDS
log=$(mktemp "${TMPDIR:-/tmp}/nacre-test.XXXXXX")
export NACRE_TEST_TAG=$$-

# Tests clean up after themselves; this is for a run that is interrupted.
cleanup() {
    local dir
    awk -v tag="/nacre-test-$NACRE_TEST_TAG" 'index($5, tag) { print $5 }' /proc/self/mountinfo | sort -r |
        while read -r dir; do umount -l "$dir"; done
    rm -rf "$log" "${TMPDIR:-/tmp}/nacre-test-$NACRE_TEST_TAG"* "/dev/shm/nacre-test-$NACRE_TEST_TAG"*
}
trap cleanup EXIT
trap 'exit 130' INT TERM

scripts/install-deps.sh test 2>&1 | tee -a "$log"
can_mount || echo "left out: tests on a mount (they need root and /dev/fuse)" | tee -a "$log"

step "formatting" cargo fmt --all -- --check
step "clippy" cargo clippy --quiet --workspace --all-targets -- -D warnings

# Output goes to the log as well: the counts and what was left out are read from it.
from=$SECONDS
cargo test --workspace --no-fail-fast 2>&1 | tee -a "$log"
status=${PIPESTATUS[0]}
echo "== cargo test took $((SECONDS - from)) s"

read -r tests_passed tests_failed < <(awk '
    /^test result:/ { for (i = 1; i < NF; i++) { if ($(i + 1) == "passed;") p += $i; if ($(i + 1) == "failed;") f += $i } }
    END { print p + 0, f + 0 }' "$log")
# A crate that does not build, or a test program that dies, has no result line of its own.
if [ "$status" -ne 0 ] && [ "$tests_failed" -eq 0 ]; then
    tests_failed=1
fi
passed=$((passed + tests_passed))
failed=$((failed + tests_failed))

# What failed stands at the end again, with the last of what it said, where the cause is: a long log is often kept without
# its middle.
awk 'function tell(  at) {
        for (at = (lines > 40 ? lines - 39 : 1); at <= lines; at++) print said[at % 40]
        lines = 0
    }
    /^---- .* stdout ----$/ { tell(); inside = 1; print "\n" $0; next }
    /^failures:$/ || /^test result:/ { tell(); inside = 0 }
    inside { said[++lines % 40] = $0 }' "$log"
grep -E '^test .* \.\.\. FAILED$|^error: test failed|process didn.t exit successfully' "$log"

echo
if grep -q '^left out:' "$log"; then
    grep '^left out:' "$log" | sort -u
fi
echo "took $((SECONDS - started)) s"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
