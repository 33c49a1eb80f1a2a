#!/usr/bin/env bash
# make nightly: the long tests, at most 80 minutes. Programs of the world on a mount, and our own tests with more seeds.
# Each step has a log of its own and its time; a step whose program is not installed says so. Ends with a table and one
# line "N passed, N failed".
#   scripts/nightly.sh [STEP...]     only these steps
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
. scripts/lib.sh
root=$PWD

logs=${NACRE_LOGS:-$(mktemp -d "${TMPDIR:-/tmp}/nacre-nightly-logs.XXXXXX")}
work=$(mktemp -d "${TMPDIR:-/tmp}/nacre-nightly.XXXXXX")
pm=$(mktemp -d "$([ -d /dev/shm ] && echo /dev/shm || echo "$work")/nacre-nightly.XXXXXX")
mnt=$work/mnt
nacre=$root/target/long/nacre
mkdir -p "$logs" "$mnt"
chmod 755 "$work" "$logs" "$pm"

cleanup() {
    umount -l "$mnt" 2>/dev/null
    umount -l "$work/tmpfs" 2>/dev/null
    rm -rf "$work" "$pm"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# A step returns this code when it cannot run here.
readonly LEFT_OUT=77
left_out() {
    echo "left out: $*"
    return $LEFT_OUT
}

# size: a fresh nacre file system of that size on $mnt.
mount_fresh() {
    can_mount || { left_out "it needs root and /dev/fuse"; return $LEFT_OUT; }
    rm -f "$pm/pm.img"
    "$nacre" mkfs --size "$1" "$pm/pm.img" && "$nacre" mount --log "$logs/mount.log" "$pm/pm.img" "$mnt"
}

# Unmounts and checks what a step has left.
unmount_checked() {
    "$nacre" umount "$mnt" && "$nacre" fsck -n "$pm/pm.img" && rm -f "$pm/pm.img"
}

# size command...: runs a command on a fresh mount, in its directory, and checks the file system afterwards.
on_mount() {
    local size=$1 status
    shift
    mount_fresh "$size" || return
    (cd "$mnt" && "$@")
    status=$?
    if ! unmount_checked; then
        umount -l "$mnt" 2>/dev/null
        echo "the file system is damaged, or could not be unmounted"
        return 1
    fi
    return $status
}

step_cargo_deny() {
    have cargo-deny || { left_out "cargo-deny is not installed"; return; }
    # The database of advisories is fetched; where that cannot be done, the rest is still checked.
    cargo-deny check bans licenses sources || return 1
    if ! cargo-deny fetch db; then
        left_out "advisories: their database cannot be fetched; bans, licences and sources are in order"
        return
    fi
    cargo-deny check advisories
}

# directory: the stressors of stress-ng that fail there.
stressors_that_fail() {
    local stressors
    # Left out: what cannot run or cannot fail on any file system in particular.
    #   binderfs, ramfs, sysfs, proc, dev-shm, mount stressors: they test file systems of their own
    stressors=$(stress-ng --class 'filesystem?' 2>/dev/null | sed 's/.*: //')
    for stressor in $stressors; do
        case $stressor in
            binderfs | ramfs | sysfs | procfs | loop | ioprio | io | hdd) continue ;;
        esac
        if ! timeout 60 stress-ng --"$stressor" 1 --timeout 4 --verify --temp-path "$1" \
            >"$work/stress.log" 2>&1; then
            # Not implemented or not allowed here is no failure (codes 3 and 4).
            echo "$stressor"
            sed "s/^/    $stressor: /" "$work/stress.log" >&2
        fi
    done
}

# A stressor counts when it fails on nacre and not on tmpfs, run right after it.
stress_ng_body() {
    local failed stressor bad=0
    failed=$(stressors_that_fail "$mnt")
    mkdir -p "$work/tmpfs"
    mount -t tmpfs -o size=2G tmpfs "$work/tmpfs" || return 1
    for stressor in $failed; do
        if timeout 60 stress-ng --"$stressor" 1 --timeout 4 --verify --temp-path "$work/tmpfs" >/dev/null 2>&1; then
            echo "FAILED on nacre, not on tmpfs: $stressor"
            bad=1
        else
            echo "fails on tmpfs, too: $stressor"
        fi
    done
    umount "$work/tmpfs"
    return $bad
}

step_stress_ng() {
    have stress-ng || { left_out "stress-ng is not installed"; return; }
    on_mount 2G stress_ng_body
}

step_dbench() {
    have dbench || { left_out "dbench is not installed"; return; }
    on_mount 2G dbench -D "$mnt" -t 40 -c "$(dpkg -L dbench | grep '/client.txt$' | head -1)" 4
}

step_fs_mark() {
    have fs_mark || { left_out "fs_mark is not installed"; return; }
    # -S 1: sync each file before it is closed; -S 0: not at all.
    on_mount 2G sh -c 'fs_mark -d . -D 16 -N 500 -n 8000 -s 4096 -t 2 -L 3 -S 1 &&
        rm -rf ./* && fs_mark -d . -D 16 -N 500 -n 8000 -s 16384 -t 4 -L 3 -S 0'
}

step_postmark() {
    have postmark || { left_out "postmark is not installed"; return; }
    on_mount 2G sh -c 'printf "%s\n" "set location ." "set number 10000" "set size 500 20000" \
        "set transactions 50000" "set subdirectories 50" "show" "run" "quit" | postmark'
}

git_body() {
    git init -q --bare source.git &&
        mkdir tree && cp -r "$root/engine" "$root/layouts" "$root/fuse" "$root/docs" tree/ &&
        mkdir tree/registry && ls -d "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/[a-m]* | awk 'NR <= 150' |
        xargs -d '\n' cp -r -t tree/registry &&
        find tree -name .git -prune -exec rm -rf {} + &&
        git -C tree init -q && git -C tree config user.email nightly@example.org &&
        git -C tree config user.name nightly && git -C tree add -A -f &&
        git -C tree commit -qm first && git -C tree push -q ../source.git HEAD:main &&
        git clone -q -b main source.git clone && git -C clone config user.email n@example.org &&
        git -C clone config user.name n || return 1
    find "$PWD/clone" -name '*.rs' -not -path '*/.git/*' -size -100k | sort >sources
    local round
    for round in 1 2 3 4 5 6 7 8; do
        awk -v round=$round 'NR % 40 == round' sources | xargs -d '\n' sed -i "1s/^/\/\/ round $round\n/" &&
            git -C clone commit -qam "round $round" || return 1
    done
    git -C clone push -q origin HEAD:main && git -C clone gc -q --prune=now &&
        git -C clone fsck --full --strict && git -C source.git gc -q && git -C source.git fsck --full &&
        git clone -q -b main source.git again && diff -r --exclude .git clone again
}

step_git() {
    have git || { left_out "git is not installed"; return; }
    on_mount 4G git_body
}

# PostgreSQL with checksums under pgbench; in the middle the process that serves the mount is killed.
step_postgresql() {
    local bin pg=$mnt/pg status=0
    bin=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | tail -1)
    [ -n "$bin" ] && id postgres >/dev/null 2>&1 || { left_out "PostgreSQL is not installed"; return; }
    as_postgres() { (cd "$work" && setpriv --reuid postgres --regid postgres --init-groups -- "$@"); }
    start_server() {
        as_postgres "$bin/pg_ctl" -D "$pg" -w -t 120 -l "$logs/postgresql-server.log" \
            -o "-c listen_addresses= -c unix_socket_directories=$work/socket -c wal_sync_method=fdatasync" start
    }
    bench() { as_postgres "$bin/pgbench" -h "$work/socket" -U postgres "$@" postgres; }
    ask() { as_postgres "$bin/psql" -h "$work/socket" -U postgres -Atc "$1" postgres; }

    mount_fresh 4G || return
    mkdir -p "$work/socket" "$pg"
    touch "$logs/postgresql-server.log"
    chown postgres "$work/socket" "$pg" "$logs/postgresql-server.log"
    chmod 700 "$pg"
    as_postgres "$bin/initdb" -k -D "$pg" -U postgres -A trust >/dev/null && start_server &&
        bench -i -q -s 10 && bench -n -c 4 -j 2 -T 60 || status=1

    # The history table has a row for each transaction (-n: pgbench empties it otherwise); those that pgbench was told of must be there afterwards.
    if [ $status -eq 0 ]; then
        local server postmaster before acknowledged found
        server=$("$nacre" info --json "$mnt" | sed -n 's/.*"pid": \([0-9]*\).*/\1/p')
        postmaster=$(head -1 "$pg/postmaster.pid")
        before=$(ask "select count(*) from pgbench_history")
        bench -n -c 4 -j 2 -T 30 --log --log-prefix="$work/socket/transactions" >/dev/null 2>&1 &
        sleep 10
        kill -9 "$server"
        wait $!
        # The server of the database lives on without its files; it must be gone before another one starts.
        kill -QUIT "$postmaster"
        for _ in $(seq 50); do
            kill -0 "$postmaster" 2>/dev/null || break
            sleep 0.2
        done
        kill -9 "$postmaster" 2>/dev/null
        "$nacre" mount --log "$logs/mount.log" "$pm/pm.img" "$mnt" || return 1
        rm -f "$pg/postmaster.pid"
        start_server || return 1
        acknowledged=$(cat "$work"/socket/transactions* 2>/dev/null | wc -l)
        found=$(ask "select count(*) from pgbench_history")
        echo "history: $before rows before, $acknowledged acknowledged until the kill, $found found"
        [ "$acknowledged" -gt 0 ] && [ "$found" -ge $((before + acknowledged)) ] || status=1
        ask "select case when (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history)
            and (select sum(bbalance) from pgbench_branches) = (select sum(delta) from pgbench_history)
            then 'sums agree' else 'SUMS DIFFER' end" | tee "$work/sums"
        grep -q 'sums agree' "$work/sums" || status=1
    fi
    as_postgres "$bin/pg_ctl" -D "$pg" -m fast -w stop || status=1
    as_postgres "$bin/pg_checksums" --check -D "$pg" || status=1
    unmount_checked || status=1
    return $status
}

rocksdb_body() {
    mkdir db && db_bench --db="$mnt/db" --num=400000 --threads=2 --sync=0 --verify_checksum=1 --paranoid_checks=1 \
        --stats_interval=100000000 \
        --benchmarks=fillseq,overwrite,readrandom,readwhilewriting,compact,verifychecksum &&
        db_bench --db="$mnt/db" --use_existing_db=1 --num=50000 --sync=1 --mmap_read=1 --stats_interval=100000000 \
            --benchmarks=overwrite,seekrandom,verifychecksum &&
        ldb --db="$mnt/db" checkconsistency
}

step_rocksdb() {
    have db_bench || { left_out "db_bench is not installed"; return; }
    on_mount 4G rocksdb_body
}

# program, argument...: one of our programs of tests. The packages are the same each time, so that all that they build on
# is built once.
run_tests() {
    cargo test --profile long -p nacre-cli -p nacre-lab --test "$@"
}

# name...: tests of the whole system, by name.
system_tests() {
    run_tests system -- --nocapture "$@"
}

step_fsx_seeds() { NACRE_FSX_SEEDS=5 NACRE_FSX_OPERATIONS=20000 system_tests suites::fsx; }
step_kill_9() { NACRE_ALL_MOUNTS=1 NACRE_KILLS=20 system_tests kill::; }
step_flipped_bits() { NACRE_FLIPS=40 system_tests corrupt::; }
step_crash_images() { (cd "$logs" && "$nacre" crash --sequences 3-sample --seed "${NACRE_CRASH_SEED:-$(date +%j)}"); }

# The self-tests of the explorer: each night another layout's, and those that NACRE_MUTANTS names. Without a limit, two
# thirds of their time would go to mutants that are argued to do no harm; make soak has none.
step_crash_mutants() {
    local layouts=(log inplace pool shadow) layout
    for layout in ${NACRE_MUTANTS:-${layouts[$((10#$(date +%j) % ${#layouts[@]}))]}}; do
        "$nacre" crash --layout "$layout" --self-test --images 10000 || return 1
    done
}
step_crash_inplace() {
    (cd "$logs" && "$nacre" crash --layout inplace --time 300 --seed "${NACRE_CRASH_SEED:-$(date +%j)}") || return 1
    # Directories without an index of names. Its flushes and fences are those above.
    (cd "$logs" && "$nacre" crash --layout inplace-linear --sequences 1 --images 100000 --time 80 \
        --seed "${NACRE_CRASH_SEED:-$(date +%j)}")
}
# Runs with a limit are spread over all workloads. Their reports name commit points with too few images.
step_crash_pool() {
    (cd "$logs" && "$nacre" crash --layout pool --sequences 1 --images 250000 --time 150 \
        --seed "${NACRE_CRASH_SEED:-$(date +%j)}") || return 1
    # Volumes, whose workloads come first.
    (cd "$logs" && "$nacre" crash --layout pool-volumes --sequences 1 --images 40000 --time 60 \
        --seed "${NACRE_CRASH_SEED:-$(date +%j)}")
}
step_crash_shadow() {
    (cd "$logs" && "$nacre" crash --layout shadow --sequences 1 --images 250000 --time 150 \
        --seed "${NACRE_CRASH_SEED:-$(date +%j)}") || return 1
    # Overwrites in place.
    (cd "$logs" && "$nacre" crash --layout shadow-in-place --sequences 1 --images 100000 --time 80 \
        --seed "${NACRE_CRASH_SEED:-$(date +%j)}")
}
# Over memory alone, and over memory and one disk or two together.
step_crash_cached() {
    NACRE_CRASH_ALL=1 run_tests crash -- buffer:: || return 1
    for layout in log inplace pool shadow shadow-in-place log-with-disk log-on-disk log-with-disks; do
        (cd "$logs" && "$nacre" crash --layout $layout --cached 100000 --images 100000 --time 60 \
            --seed "${NACRE_CRASH_SEED:-$(date +%j)}") || return 1
    done
}
# Memory and disks together; mutants of what moves blocks.
step_crash_tiers() {
    for layout in log-with-disk log-on-disk; do
        (cd "$logs" && "$nacre" crash --layout $layout --sequences 1 --images 60000 --time 60 \
            --seed "${NACRE_CRASH_SEED:-$(date +%j)}") &&
            "$nacre" crash --layout $layout --self-test --mutants publish.rs || return 1
    done
    # The layout's own flushes and fences are those of the step above.
    for layout in shadow-with-disk shadow-anticache shadow-in-place-anticache; do
        (cd "$logs" && "$nacre" crash --layout $layout --sequences 1 --images 60000 --time 60 \
            --seed "${NACRE_CRASH_SEED:-$(date +%j)}") || return 1
    done
    # Blocks also move from one disk to another: by the same lines, so that no mutants are made again.
    (cd "$logs" && "$nacre" crash --layout log-with-disks --sequences 1 --images 60000 --time 60 \
        --seed "${NACRE_CRASH_SEED:-$(date +%j)}")
}
# Each line of the pool layout's metadata in turn: some 5000 file systems, two or three minutes on two cores.
step_poison() {
    NACRE_POISON_ALL=1 run_tests behaviour -- media_errors::pool::one_lost_copy_of_anything
}
step_buffered() { NACRE_ALL_MOUNTS=1 system_tests behaviour::; }
step_lazy_suites() { NACRE_ALL_MOUNTS=1 NACRE_FSX_SEEDS=2 system_tests lazy_suites::; }
step_programs() { system_tests programs::; }
step_model() { NACRE_MODEL_SECONDS=${NACRE_MODEL_SECONDS:-20} run_tests behaviour model::; }
step_dram() { NACRE_FILES=${NACRE_FILES:-1000000} run_tests dram; }
step_calls() { NACRE_MODEL_SECONDS=${NACRE_MODEL_SECONDS:-40} run_tests behaviour -- \
    calls:: library:: linearizable:: tiers::unrest::shadow::a_file_system tiers::buffered::shadow::a_file_system; }
step_schedules() { NACRE_SCHEDULES=${NACRE_SCHEDULES:-250} NACRE_SEED=${NACRE_SEED:-$(date +%j)} scripts/schedules.sh; }
step_calls_on_mount() { NACRE_MODEL_SECONDS=${NACRE_MODEL_SECONDS:-40} system_tests calls::; }

# What an experiment waits for, a reason on each line, from lines "PREFIX WHAT: REASON". A counter that so short a run gave
# nothing to count is none: a file server that syncs nothing has no syncs to predict.
reasons() { sed -n "s/^$1 waits: //p" | sed 's/^.*: //' | grep -v ' is not counted there$' | sort -u; }

# Every experiment of nacre bench paper once, in the process, as small and as short as can be: that it runs, not what it
# finds. What it waits for must have been known before; what shows only while it runs is a failure. A test of the bench
# holds each of them to 8 GiB of memory at this scale. Each day begins with another one, so that where six minutes are
# too short for all, all have their day. NACRE_EXPERIMENTS names some.
step_experiments() {
    local end=$((SECONDS + 360)) out=$work/experiments names name from left status bad=0 late="" ran=0
    mkdir -p "$out"
    "$nacre" bench paper --list >"$out/list" || return 1
    mapfile -t names < <(sed -n 's/^  \([a-z]*-[a-z0-9.-]*\) .*/\1/p' "$out/list")
    from=$((10#$(date +%j) * 29 % ${#names[@]}))
    for name in ${NACRE_EXPERIMENTS:-"${names[@]:from}" "${names[@]:0:from}"}; do
        from=$SECONDS
        left=$((end - from < 180 ? end - from : 180))
        if [ $left -le 0 ]; then
            late+=" $name"
            continue
        fi
        set -- bench paper "$name" --in-process --effort quick --scale 0.001
        "$nacre" "$@" -n >"$out/planned" || bad=1
        TMPDIR=$out timeout --signal INT --kill-after 20 $left "$nacre" "$@" >"$out/said" 2>&1
        status=$?
        if [ $status -eq 124 ] && [ $left -lt 180 ]; then
            late+=" $name"
            continue
        elif [ $status -ne 0 ]; then
            echo "FAILED: $name ($status)"
            cat "$out/said"
            bad=1
        elif grep -q ' is not counted there$' "$out/said" && ! grep -qE ' (ns|us|ms|s) +[0-9]+$' "$out/said"; then
            echo "FAILED: $name: it counted nothing at all"
            cat "$out/said"
            bad=1
        elif [ -n "$(comm -13 <(reasons '#' <"$out/planned") <(reasons ' ' <"$out/said"))" ]; then
            echo "FAILED: $name: it waits for what it had"
            cat "$out/said"
            bad=1
        fi
        ran=$((ran + 1))
        echo "$name: $((SECONDS - from)) s"
    done
    echo "$ran experiments ran"
    [ "$ran" -gt 0 ] && [ $bad -eq 0 ] || return 1
    [ -z "$late" ] || left_out "after six minutes there was no time for:$late"
}

all_steps="cargo_deny stress_ng dbench fs_mark postmark git postgresql rocksdb fsx_seeds kill_9 flipped_bits crash_images crash_mutants crash_inplace crash_pool crash_shadow crash_cached crash_tiers poison buffered lazy_suites programs model dram calls calls_on_mount schedules experiments"

scripts/install-deps.sh nightly
run_tests system --test crash --test behaviour --test dram --no-run || exit 1

table=""
begun=$SECONDS
for name in ${*:-$all_steps}; do
    from=$SECONDS
    (set -x; "step_$name") >"$logs/$name.log" 2>&1
    status=$?
    case $status in
        0) result=passed; passed=$((passed + 1)) ;;
        "$LEFT_OUT") result=$(grep '^left out:' "$logs/$name.log" | tail -1) ;;
        *)
            result="FAILED ($status)"
            failed=$((failed + 1))
            tail -c 4000 "$logs/$name.log" | tail -40
            umount -l "$mnt" 2>/dev/null
            ;;
    esac
    line=$(printf '%-14s %5d s  %s' "$name" $((SECONDS - from)) "$result")
    echo "$line"
    table+="$line"$'\n'
done

echo
printf '%s' "$table"
echo "took $(((SECONDS - begun) / 60)) minutes; logs in $logs"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
