#!/usr/bin/env bash
# Records the traces that nacre bench replays as trace.git, trace.sqlite, trace.mail and trace.postgresql: small runs of
# the real programs in a temporary directory, under strace, converted. What is not installed is left out.
#   scripts/record-traces.sh [git|sqlite|mail|postgresql...]
# Wants strace and a built nacre (NACRE=PATH, by default target/release/nacre); PostgreSQL wants root. KEEP=DIR keeps what
# strace wrote. A new recording is a new workload: figures of the old one do not compare with it.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
nacre=$(realpath "${NACRE:-target/release/nacre}")
traces=$PWD/bench/traces
work=$(mktemp -d "${TMPDIR:-/tmp}/nacre-record.XXXXXX")
finish() {
    [ -z "${KEEP:-}" ] || cp "$work"/*.strace "$KEEP"
    rm -rf "$work"
}
trap finish EXIT
chmod 755 "$work"
mkdir -p "$traces"

# name directory command...: runs a command there under strace, and converts what it did.
record() {
    local name=$1 dir=$2
    shift 2
    (cd "$dir" && strace -f -ttt -y -s 0 -e trace=%file,%desc,%process -o "$work/$name.strace" "$@" >"$work/$name.log" 2>&1)
    convert "$name" "$dir"
}

convert() {
    echo "$1:"
    "$nacre" bench trace convert "$work/$1.strace" --under "$2" -o "$traces/$1.trace"
    ls -l "$traces/$1.trace"
}

# A tree of 60 files, two commits, a change, and a clone of it with objects copied.
record_git() {
    local dir=$work/git
    mkdir "$dir"
    cat >"$work/git.sh" <<'SCRIPT'
set -e
for n in $(seq 60); do
    mkdir -p "repo/d$((n % 6))"
    seq $((n * 20)) >"repo/d$((n % 6))/f$n"
done
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_NAME=n GIT_AUTHOR_EMAIL=n@example.org \
    GIT_COMMITTER_NAME=n GIT_COMMITTER_EMAIL=n@example.org
cd repo
git init -q -b main . --template=
git add -A
git commit -qm first
seq 999 >d1/f1
git commit -qam second
git clone -q --no-local --template= . ../clone
SCRIPT
    record git "$dir" sh "$work/git.sh"
}

# 60 transactions with a rollback journal, 60 with a write-ahead log, synchronous=FULL, then reads of all.
record_sqlite() {
    local dir=$work/sqlite mode
    mkdir "$dir"
    for mode in delete wal; do
        echo "pragma journal_mode=$mode; pragma synchronous=full;"
        echo "create table if not exists t(id integer primary key, k integer, v blob);"
        echo "create index if not exists tk on t(k);"
        for n in $(seq 60); do
            echo "begin; insert into t(k, v) values ($((n * 7919 % 1000)), randomblob(900));"
            echo "update t set v = randomblob(700) where id = $((n / 2 + 1)); commit;"
        done
        echo "select count(*), sum(length(v)) from t;"
    done >"$work/sqlite.sql"
    record sqlite "$dir" sqlite3 -init /dev/null test.db ".read $work/sqlite.sql"
}

# 150 deliveries to a maildir (tmp, fsync, rename to new, fsync of the directory), while a reader takes them to cur.
record_mail() {
    local dir=$work/mail
    mkdir "$dir"
    cat >"$work/mail.py" <<'SCRIPT'
import os, random, threading
random.seed(1)
for name in ("tmp", "new", "cur"):
    os.mkdir(name)

def sync_dir(path):
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(fd)
    os.close(fd)

def deliver(user):
    for n in range(75):
        name = f"{user}.{n}"
        fd = os.open(f"tmp/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        left = random.randint(500, 20000)
        while left > 0:
            left -= os.write(fd, b"m" * min(left, 8192))
        os.fsync(fd)
        os.close(fd)
        os.rename(f"tmp/{name}", f"new/{name}")
        sync_dir("new")

def read(count):
    while count > 0:
        for name in sorted(os.listdir("new")):
            os.rename(f"new/{name}", f"cur/{name}:2,S")
            fd = os.open(f"cur/{name}:2,S", os.O_RDONLY)
            while os.read(fd, 16384):
                pass
            os.close(fd)
            count -= 1
            if count % 3 == 0:
                os.unlink(f"cur/{name}:2,S")

threads = [threading.Thread(target=deliver, args=(user,)) for user in ("a", "b")]
threads.append(threading.Thread(target=read, args=(150,)))
[thread.start() for thread in threads]
[thread.join() for thread in threads]
SCRIPT
    # The interpreter itself: what stands in PATH may be a script that looks for it, and would be in the trace.
    record mail "$dir" "$(python3 -c 'import sys; print(sys.executable)')" -I -S "$work/mail.py"
}

# pgbench's own transactions on a database of one unit, two clients; the server alone is recorded.
record_postgresql() {
    local bin dir=$work/postgresql
    bin=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | tail -1)
    [ -n "$bin" ] && id postgres >/dev/null 2>&1 || { echo "left out: PostgreSQL is not installed"; return; }
    as_postgres() { (cd "$work" && setpriv --reuid postgres --regid postgres --init-groups -- "$@"); }
    mkdir "$dir" "$work/socket"
    chown postgres "$dir" "$work/socket"
    chmod 700 "$dir"
    as_postgres "$bin/initdb" -D "$dir" -U postgres -A trust -N >/dev/null
    local options="-c listen_addresses= -c unix_socket_directories=$work/socket -c autovacuum=off"
    options+=" -c shared_buffers=2MB -c min_wal_size=32MB -c max_wal_size=32MB -c wal_sync_method=fdatasync"
    as_postgres "$bin/pg_ctl" -D "$dir" -w -o "$options" -l "$work/socket/log" start >/dev/null
    as_postgres "$bin/pgbench" -h "$work/socket" -U postgres -i -q -s 1 postgres 2>/dev/null
    as_postgres "$bin/pg_ctl" -D "$dir" -w stop >/dev/null
    # shellcheck disable=SC2086
    as_postgres strace -f -ttt -y -s 0 -e trace=%file,%desc,%process -o "$work/socket/strace" \
        "$bin/postgres" -D "$dir" $options >"$work/postgresql.log" 2>&1 &
    local server=$!
    for _ in $(seq 100); do
        as_postgres "$bin/psql" -h "$work/socket" -U postgres -c 'select 1' postgres >/dev/null 2>&1 && break
        sleep 0.2
    done
    as_postgres "$bin/pgbench" -h "$work/socket" -U postgres -n -c 2 -t 60 postgres
    as_postgres "$bin/pg_ctl" -D "$dir" -m fast -w stop >/dev/null
    wait "$server" || true
    mv "$work/socket/strace" "$work/postgresql.strace"
    convert postgresql "$dir"
}

have strace || { echo "strace is not installed" >&2; exit 1; }
for name in ${*:-git sqlite mail postgresql}; do
    "record_$name"
done
