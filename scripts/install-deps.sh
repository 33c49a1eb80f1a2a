#!/usr/bin/env bash
# Installs what the tests need and do not find: Debian packages (as root) and a few cargo tools.
#   scripts/install-deps.sh [test|bench|nightly]
# It is idempotent, and quick when everything is there. What cannot be installed is named and left out: the tests that
# need it say so themselves. The cargo tools go to a cache outside the repository ($NACRE_TOOLS).
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
. scripts/lib.sh

what=${1:-test}
case $what in
    test | bench | nightly) ;;
    *) echo "usage: $0 [test|bench|nightly]" >&2; exit 2 ;;
esac

# command-or-file:package, one for each thing that a test calls.
packages=(
    cc:gcc
    make:make
    git:git
    fusermount3:fuse3
    /usr/include/sys/acl.h:libacl1-dev
    getfacl:acl
    setfattr:attr
    fio:fio
    sqlite3:sqlite3
    mkfs.ext4:e2fsprogs
    mkfs.xfs:xfsprogs
    losetup:mount
    dmsetup:dmsetup
)
if [ "$what" != bench ]; then
    packages+=(chromium:chromium)
fi
if [ "$what" = nightly ]; then
    packages+=(
        stress-ng:stress-ng
        dbench:dbench
        fs_mark:fsmark
        postmark:postmark
        db_bench:rocksdb-tools
        /usr/lib/postgresql:postgresql
        /usr/include/leveldb/c.h:libleveldb-dev
    )
fi

have_file_or_command() {
    case $1 in
        /*) [ -e "$1" ] ;;
        *) have "$1" ;;
    esac
}

missing=()
for pair in "${packages[@]}"; do
    have_file_or_command "${pair%%:*}" || missing+=("${pair#*:}")
done

if [ ${#missing[@]} -gt 0 ]; then
    if [ "$(id -u)" -ne 0 ] || ! have apt-get; then
        echo "left out: packages ${missing[*]} (installing them needs root and apt-get)"
    else
        echo "installing ${missing[*]}"
        export DEBIAN_FRONTEND=noninteractive
        # postgresql-common would start a server of its own; the tests start theirs.
        if [ ! -e /etc/postgresql-common/createcluster.conf ] && [ "$what" = nightly ]; then
            mkdir -p /etc/postgresql-common
            echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.conf
        fi
        apt-get -qq update || echo "apt-get update failed; going on with what is known"
        # One at a time when all together fail, so that one missing package takes no other with it.
        if ! apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null; then
            for package in "${missing[@]}"; do
                apt-get -qq install -y --no-install-recommends "$package" >/dev/null ||
                    echo "left out: package $package (apt-get could not install it)"
            done
        fi
    fi
fi

# name version binary: a cargo tool, installed once into the cache and remembered by its version.
cargo_tool() {
    local name=$1 version=$2 binary=$3
    local stamp="$NACRE_TOOLS/.$name-$version"
    if [ -e "$stamp" ] && [ -x "$NACRE_TOOLS/bin/$binary" ]; then
        return 0
    fi
    echo "installing $name $version into $NACRE_TOOLS"
    mkdir -p "$NACRE_TOOLS"
    # With the toolchain of this repository, and built outside its target directory.
    if env -u CARGO_TARGET_DIR -u RUSTFLAGS cargo install --quiet --locked --force \
        --root "$NACRE_TOOLS" --version "=$version" "$name"; then
        touch "$stamp"
    else
        echo "left out: $name $version (cargo could not install it)"
    fi
}

if [ "$what" = bench ]; then
    exit 0
fi
cargo_tool pjdfstest 0.2.2 pjdfstest
cargo_tool fsx 0.3.2 fsx
if [ "$what" = nightly ]; then
    cargo_tool cargo-deny 0.18.5 cargo-deny
fi
exit 0
