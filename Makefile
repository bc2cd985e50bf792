# Every check and every job of the project is a target here; CI, the hooks and people call these and nothing else.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
export VIRTUAL_ENV := $(abspath $(VENV))
export PATH := $(abspath $(BIN)):$(PATH)
export CARGO_TERM_COLOR ?= never

RUST_SOURCES := $(shell find rust Cargo.toml Cargo.lock -type f 2>/dev/null)

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(BIN)/activate:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"

# PyTorch with CUDA libraries is a download of about 2 GB; nothing here needs a GPU.
$(VENV)/dependencies: pyproject.toml $(BIN)/activate
	$(BIN)/python -m pip install --quiet --group dev
	touch $@

# Release: the extension and the tests share one build, and replaying traces in debug mode takes minutes.
$(VENV)/built: $(VENV)/dependencies $(RUST_SOURCES)
	$(BIN)/maturin develop --release --locked
	touch $@

setup: $(VENV)/built ## Make .venv with all dependencies and the built package

demo: setup ## Largest batch of ResNet-50 on an RTX 3090, without a GPU
	$(BIN)/gpumem max-batch torchvision:resnet50 --gpu rtx3090

format: setup ## Rewrite Rust and Python sources in the project's format
	cargo fmt --all
	$(BIN)/ruff check --fix --quiet . || true
	$(BIN)/ruff format --quiet .

lint-rust: setup ## rustfmt, clippy and rustdoc, warnings denied
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked --quiet -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet

lint-python: setup ## ruff, mypy --strict, and the stub against the built extension
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy
	MYPYPATH=python $(BIN)/python -m mypy.stubtest gpumem._core

lint-structure: ## File sizes and the direction of imports
	$(PYTHON) tools/check_sizes.py
	$(PYTHON) tools/check_imports.py

check: lint-structure lint-rust lint-python ## All static checks

test-rust: setup ## Unit, property, replay and documentation tests of the core
	cargo test --workspace --release --locked --quiet

test-python: setup ## pytest: contract, sources, CLI, extraction, parity
	$(BIN)/python -m pytest --numprocesses=2 --dist=loadfile

test-versions: setup ## What traces and checkpoints models, in old versions of torch, each in an environment of 3 GB
	$(BIN)/python tools/check_versions.py

test: check test-rust test-python ## Everything that CI runs

parity: setup ## Wide comparison with the virtual GPU; hours; resumable; writes benchmarks/results
	$(BIN)/python -m tests.parity.sweep run
	$(BIN)/python -m tests.parity.sweep summary
	$(BIN)/python -m tests.parity.plans
	$(BIN)/python -m tests.validation.sweep
	$(BIN)/python -m tests.validation.brackets

truth: setup ## Comparison with values measured on real GPUs; resumable; writes benchmarks/results
	$(BIN)/python -m benchmarks.truth_measured run
	$(BIN)/python -m benchmarks.truth_measured virtual
	$(BIN)/python -m benchmarks.truth_xmem run

bench: setup ## Speed as ratios against PyTorch's MemTracker, planner beside others, sweeps; writes benchmarks/results
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python -m benchmarks.planner
	$(BIN)/python -m benchmarks.sweep

clean: ## Remove what the targets above made
	rm -rf $(VENV) target .mypy_cache .ruff_cache .pytest_cache python/gpumem/_core*.so python/gpumem/virtual/lib

.PHONY: help setup demo format lint-rust lint-python lint-structure check test-rust test-python test-versions test parity truth bench clean
