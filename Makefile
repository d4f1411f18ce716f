# What a person types. Every target prints what it does; none needs a terminal.
#   make         builds the release binary
#   make demo    a container's root tree on Vellum, shown step by step (root: real layers and podman;
#                ordinary user: the rootless form)
#   make demo-ceph  two tenants whose image lies on CephFS, in a cluster in memory: weights, a killed service, a container that moves (as root)
#   make demo-checkpoint  a container that is kept, ends, and goes on from where it was (as root)
#   make test    installs what the tests need and runs all of them (as root)
#   make test-quick  unit tests, models, comparisons with the kernel's overlayfs: some minutes after the build (as root)
#   make bench   compares with the other filesystems of this machine (an hour and more, as root), keeps what it has
#                measured in docs/benchmarks, and prints a table of it
#   make bench-quick  compares what operations cost, in requests, system calls, space, locked instructions and allocations,
#                with what they cost before
#   make fuzz    looks for bytes that make a parser panic, an hour for each target (FUZZ="--seconds 60 marks")
#   make replay  looks at what losses of power leave on ext4 and XFS, at STATES=1000 moments for each filesystem and profile
#   make kills   kills services KILLS=10000 times in each profile, alone and in a pool, while threads change files (as root)
#   make explore looks at ORDERS=5000 orders in which parties may change what others believe, of each kind
#   make zoned   tries the commands of the zoned store on a zoned namespace in a virtual machine, a minute
#   make checkpoint-vm  takes checkpoints with a first pass over memory where a kernel can, in a virtual machine, some minutes (as root)
#   make deps    only the installing
#   make book    the book of docs/src as HTML, in target/book/html
#   make library the preload library, target/release/libvellum.so
#   make install PREFIX=/usr/local: the command, its helper names, manual and completions, and the library and vellum-bench if they have been built
#   make uninstall PREFIX=/usr/local: takes that away
SHELL := /bin/bash
PREFIX ?= /usr/local
DESTDIR ?=

.PHONY: all build demo demo-ceph demo-checkpoint test test-quick bench bench-quick fuzz replay kills explore zoned checkpoint-vm conformance-zoned conformance-ceph conformance-pool conformance-rootless conformance-build test-ceph-18 deps check book library install uninstall clean
.DEFAULT_GOAL := all

all: build

build:
	cargo build --release --locked

# One file for every libc.
library:
	scripts/library

demo:
	@scripts/demo

demo-ceph:
	@scripts/demo-ceph

demo-checkpoint:
	@scripts/demo-checkpoint

deps:
	@scripts/deps

# The runner prints a line per suite and ends with one closing line: "N passed, N failed, N skipped".
# What is not needed to build is fetched meanwhile.
test:
	@echo "Everything takes about half an hour on two processors, 10 minutes of it for building. make test-quick takes less than half of that."
	@scripts/deps packages
	@scripts/deps suites & suites=$$!; \
	  $(BUILD_TESTS); \
	  built=$$?; wait $$suites && exit $$built
	@target/debug/vellum-tests $(TESTS)

# Rules of the source, unit tests, models, comparisons with the kernel's overlayfs.
test-quick:
	@scripts/deps packages
	@$(BUILD_TESTS)
	@target/debug/vellum-tests --quick $(TESTS)

# All targets of all crates at once: a choice of them would build what they share a second time, with other features.
BUILD_TESTS = scripts/step "build, release" cargo build --release --locked --package vellum && \
	  scripts/step "build, library" scripts/library && \
	  scripts/step "build, tests" cargo build --locked --workspace --all-targets --features vellum/memory-layers

# The cases of layers on CephFS with Ceph 18.2, in Debian 13.
test-ceph-18: deps
	@scripts/step "build" cargo build --locked --package vellum --package vellum-tests --package vellum-bench
	@scripts/step "build, branch" cargo test --quiet --locked --no-run --package vellum-branch --test conformance --test ceph
	@scripts/ceph-18

# Counts do not depend on how busy the machine is.
GUARD = scripts/step "counts" target/debug/vellum-bench guard --baseline crates/bench/guard.json \
	--program vellum=target/release/vellum
bench-quick:
	@scripts/step "build, release" cargo build --release --locked --package vellum
	@scripts/step "build, bench" cargo build --locked --package vellum-bench
	@# 77: the counts are of another kernel or filesystem, as the last line says.
	@$(GUARD) || [ $$? = 77 ]
	@scripts/step "allocations" cargo test --quiet --locked --package vellum-union --test allocations

# The same cases look at a few moments in `make test`. Other moments, and other changes, each time.
STATES ?= 1000
replay:
	@scripts/step "build, release" cargo build --release --locked --package vellum
	@scripts/step "build, tests" cargo build --locked --package vellum-tests
	@VELLUM_REPLAY=$(STATES) target/debug/vellum-tests blocks/replay

# The same cases go on for some seconds in `make test`. Each answer of a mount is compared with that of a directory of the host.
KILLS ?= 10000
kills:
	@scripts/step "build, release" cargo build --release --locked --package vellum
	@scripts/step "build, tests" cargo build --locked --package vellum-tests
	@VELLUM_KILLS=$(KILLS) target/debug/vellum-tests crash/

# The suites of others with the upper layer in a store on a zoned device, emulated by a file, or on CephFS, or with the mount in a pool: two
# minutes each. conformance-rootless: in a user namespace, where profile=passthrough cannot be.
conformance-zoned conformance-ceph conformance-pool: conformance-%: conformance-build
	@VELLUM_TEST_PLACE=$* target/debug/vellum-tests conformance

conformance-rootless: conformance-build
	@scripts/rootless target/debug/vellum-tests $(addsuffix [cached],$(addprefix conformance/,pjdfstest fsx fio dbench stress-ng))

conformance-build:
	@scripts/step "build, release" cargo build --release --locked --package vellum
	@scripts/step "build, tests" cargo build --locked --package vellum-tests

zoned:
	VELLUM_ZONED_VM=1 cargo test --locked --package vellum --test zoned -- --nocapture virtual_machine

checkpoint-vm:
	@scripts/step "build" cargo build --locked --package vellum
	@scripts/checkpoint-vm

# `make test` looks at some, drawn anew each time.
ORDERS ?= 5000
explore:
	COHERENCE_RUNS=$(ORDERS) RUSTFLAGS="--cfg=shuttle" cargo test --locked --target-dir target/shuttle --package vellum-union --test coherence

# What has been found to be worth trying is added to fuzz/corpus.
FUZZ ?= --seconds 3600 --keep
fuzz:
	@scripts/apt g++
	scripts/fuzz $(FUZZ)

# BENCH: more arguments, e.g. BENCH="--program fuse-overlayfs-2=/opt/bin/fuse-overlayfs --dir /mnt".
bench: build
	cargo build --release --locked --package vellum-bench
	@# What a filesystem cannot do is a failed measurement, and no reason to have no table.
	target/release/vellum bench compare --tasks all --rounds 5 --patience 30 --json target/bench.json $(BENCH); status=$$?; \
	kept=$$(target/release/vellum bench keep target/bench.json docs/benchmarks) && echo "kept: $$kept" && \
	target/release/vellum bench table $$kept && exit $$status

# mdBook is built first if it is not there.
book:
	@scripts/book

# What needs no root and no mount.
check:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	cargo test --workspace

install: build
	PREFIX=$(PREFIX) DESTDIR=$(DESTDIR) packaging/install

uninstall:
	PREFIX=$(PREFIX) DESTDIR=$(DESTDIR) packaging/uninstall

clean:
	cargo clean
