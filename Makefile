# Each target installs its dependencies on a fresh Debian 12 machine with Rust (as root).

PREFIX ?= /usr/local
DESTDIR ?=
# mount(8) and fsck(8) look for their helpers here, whatever the prefix is.
SBINDIR ?= /sbin
KILLS ?= 500
FUZZ_SECONDS ?= 3600
# See docs/design/testing.md, "Fuzzing by coverage".
FUZZ_ARGS ?= --sanitizer none --no-trace-compares
FUZZ_TARGETS = image inplace pool shadow log tier fuse options
TRIPLES ?= 40000
SEED ?= $(shell date +%s)
OPERATIONS ?= 10000000
# The directory of reports. docs/reports has their text (nacre bench report --text).
REPORTS ?= target/reports
# The files of the performance targets of nacre.
BOUNDS ?= target/figures
# Targets that are compared. Ratios refer to the last one. One target counts the bytes that reach PM (pm.* and
# write.amplification in the report), which costs it some percent of its time.
BENCH_TARGETS = -t preset:nova -t preset:nova,emulate=dram -t mount:nova -t peer:ext4 -t peer:xfs -t peer:ramfs -t peer:tmpfs
# The limit of the page cache of mounted targets, including nacre's mount, by a cgroup: enough for the largest file.
BENCH_MEMORY ?= 768M
REPORT_MEMORY ?= 2G
# Targets of the A/A test.
ITSELF_TARGETS ?= preset:nova mount:nova peer:tmpfs
ITSELF_WORKLOADS ?= micro.write,file=512m,io=4k micro.read,file=512m,io=4k meta.create
# Names of the command for mkfs(8), fsck(8), mount(8) and umount(8).
NAMES = mkfs.nacre fsck.nacre mount.nacre mount.fuse.nacre umount.nacre umount.fuse.nacre

.PHONY: all test nightly demo lint bench figures report itself soak fuzz install uninstall help

all:
	cargo build --release -p nacre-cli

help:
	@echo "make           build the commands nacre, nacre-bench and nacre-lab (target/release)"
	@echo "make test      build, lints, all tests; at most 15 minutes"
	@echo "make nightly   the long tests: the world's own test programs; at most 80 minutes"
	@echo "make demo      watch it work and survive a kill"
	@echo "make lint      formatting and clippy"
	@echo "make bench     a small round, with ext4, xfs, tmpfs and ramfs (root; five minutes): target/bench.html"
	@echo "make figures   the performance targets of nacre, compared with tmpfs: BOUNDS=$(BOUNDS), .json and .html"
	@echo "make report    the same operations on other file systems: $(REPORTS)"
	@echo "make itself    A/A test: how large the benchmark's own error is"
	@echo "make soak      kill and remount (KILLS=$(KILLS)); the model (OPERATIONS=$(OPERATIONS)); millions of crash images"
	@echo "               (TRIPLES=$(TRIPLES), SEED); ten million extents; sanitizers and make fuzz, where they can be had"
	@echo "make fuzz      coverage-guided fuzzing (nightly compiler, cargo-fuzz), FUZZ_SECONDS=$(FUZZ_SECONDS) a target"
	@echo "make install   into PREFIX=$(PREFIX), helpers for mount and fsck into SBINDIR=$(SBINDIR)"

test:
	@scripts/test.sh

nightly:
	@scripts/nightly.sh

demo:
	@cargo build --quiet --release -p nacre-cli
	@target/release/nacre demo

lint:
	cargo fmt --all -- --check
	cargo clippy --workspace --all-targets -- -D warnings

bench: all
	@scripts/install-deps.sh bench
	target/release/nacre bench run group:small $(BENCH_TARGETS) --memory $(BENCH_MEMORY) \
		--json target/bench.json --html target/bench.html $(BENCH_ARGS)

figures: all
	@scripts/install-deps.sh bench
	target/release/nacre bench figures --json $(BOUNDS).json --html $(BOUNDS).html $(BENCH_ARGS)

report: all
	@scripts/install-deps.sh bench
	mkdir -p $(REPORTS)
	target/release/nacre bench run group:figures $(BENCH_TARGETS) --memory $(REPORT_MEMORY) \
		--json $(REPORTS)/figures.json --html $(REPORTS)/figures.html $(BENCH_ARGS)

# Each target is compared with a copy of itself: the difference is the error of the harness.
itself: all
	@scripts/install-deps.sh bench
	mkdir -p $(REPORTS)
	for target in $(ITSELF_TARGETS); do \
		name=$$(echo $$target | tr : -); \
		target/release/nacre bench run $(ITSELF_WORKLOADS) -t $$target,copy=other -t $$target \
			--json target/itself-$$name.json $(BENCH_ARGS) || exit 1; done
	target/release/nacre bench report target/itself-*.json --html $(REPORTS)/itself.html

soak:
	@scripts/install-deps.sh test
	NACRE_KILLS=$(KILLS) cargo test --release -p nacre-cli --test system -- --nocapture kill
	NACRE_MODEL_LONG=$(OPERATIONS) cargo test --release -p nacre-lab --test behaviour -- --nocapture model::for_long
	cargo build --release -p nacre-cli
	target/release/nacre crash --sequences 3-sample --triples $(TRIPLES) --random 1000 --threads 200 --seed $(SEED)
	for layout in inplace pool shadow shadow-in-place; do \
		target/release/nacre crash --layout $$layout --sequences 3-sample --triples $(TRIPLES) --random 1000 --seed $(SEED) \
			|| exit 1; done
	for layout in pool-volumes log-with-disk log-on-disk log-with-disks shadow-with-disk shadow-anticache \
		shadow-in-place-anticache; do \
		target/release/nacre crash --layout $$layout --sequences 3-sample --images 1000000 --seed $(SEED) || exit 1; done
	for layout in log inplace pool shadow shadow-in-place log-with-disk log-on-disk log-with-disks; do \
		target/release/nacre crash --layout $$layout --cached 100000 --images 1000000 --seed $(SEED) || exit 1; done
	for layout in log inplace pool shadow; do target/release/nacre crash --layout $$layout --self-test || exit 1; done
	cargo bench -p nacre-lab --bench extents
	scripts/sanitizers.sh
	@if cargo +nightly fuzz --version >/dev/null 2>&1; then $(MAKE) fuzz; \
	else echo "left out: fuzzing (it needs a nightly compiler and cargo-fuzz)"; fi

fuzz:
	for target in $(FUZZ_TARGETS); do \
		mkdir -p fuzz/work/$$target && \
		cargo +nightly fuzz run $(FUZZ_ARGS) $$target fuzz/work/$$target fuzz/corpus/$$target -- \
			-max_total_time=$(FUZZ_SECONDS) -timeout=20 -rss_limit_mb=2048 || exit 1; done

install:
	cargo build --release -p nacre-cli
	for name in nacre nacre-bench nacre-lab; do \
		install -D -m 755 target/release/$$name $(DESTDIR)$(PREFIX)/bin/$$name || exit 1; done
	install -d $(DESTDIR)$(SBINDIR)
	for name in $(NAMES); do \
		ln -sfn $(PREFIX)/bin/nacre $(DESTDIR)$(SBINDIR)/$$name || exit 1; done
	install -d $(DESTDIR)$(PREFIX)/share/man/man8
	target/release/nacre man $(DESTDIR)$(PREFIX)/share/man/man8
	install -d $(DESTDIR)$(PREFIX)/share/bash-completion/completions \
		$(DESTDIR)$(PREFIX)/share/zsh/site-functions $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
	target/release/nacre completions bash >$(DESTDIR)$(PREFIX)/share/bash-completion/completions/nacre
	target/release/nacre completions zsh >$(DESTDIR)$(PREFIX)/share/zsh/site-functions/_nacre
	target/release/nacre completions fish >$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/nacre.fish

uninstall:
	for name in nacre nacre-bench nacre-lab; do rm -f $(DESTDIR)$(PREFIX)/bin/$$name; done
	rm -f $(DESTDIR)$(PREFIX)/share/man/man8/nacre.8 \
		$(DESTDIR)$(PREFIX)/share/man/man8/nacre-*.8 $(DESTDIR)$(PREFIX)/share/man/man8/*.nacre.8 \
		$(DESTDIR)$(PREFIX)/share/bash-completion/completions/nacre \
		$(DESTDIR)$(PREFIX)/share/zsh/site-functions/_nacre \
		$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/nacre.fish
	for name in $(NAMES); do rm -f $(DESTDIR)$(SBINDIR)/$$name; done
