# Shared by the scripts: source it from the repository's root.
# shellcheck shell=bash

# Where the cargo tools of the tests live, outside the repository.
NACRE_TOOLS=${NACRE_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/nacre-tools}
export NACRE_TOOLS
PATH="$NACRE_TOOLS/bin:$PATH:/usr/local/sbin:/usr/sbin:/sbin:/usr/games"
export PATH

# True when the command exists.
have() {
    command -v "$1" >/dev/null 2>&1
}

# True when this user can mount through /dev/fuse.
can_mount() {
    [ "$(id -u)" -eq 0 ] && [ -c /dev/fuse ]
}

# Steps so far.
passed=0
failed=0

# name command...: one step that is a test by itself.
step() {
    local name=$1 from=$SECONDS
    shift
    if "$@"; then
        echo "== $name: passed in $((SECONDS - from)) s"
        passed=$((passed + 1))
    else
        echo "== $name: FAILED after $((SECONDS - from)) s"
        failed=$((failed + 1))
    fi
}
