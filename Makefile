# Every target runs scripts/setup.sh first. `make help` lists the targets.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo test checks tests bench crash simulate soak sizes setup setup-tests lock docs clean

BIN := .venv/bin
PY := $(BIN)/python
CODE := $(wildcard src tests benchmarks examples scripts)
TYPED := $(wildcard src tests benchmarks examples scripts)

# The S3 server of the tests, if set-up could build it. Without it the S3 tests are skipped.
export HOLDFAST_VERSITYGW ?= $(CURDIR)/.tools/bin/versitygw

# Hundreds of processes import holdfast during the tests: without bytecode each of them compiles it again.
export PYTHONDONTWRITEBYTECODE :=

# Number of test processes. Most tests wait for a process now and then, so three fit two cores.
WORKERS ?= 3

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: setup ## the scores of a video game, live, on this machine; SECONDS=30 ends it after 30 seconds
	@$(BIN)/holdfast demo $(if $(SECONDS),--seconds $(SECONDS))

# The checks run beside the tests, which leave the processors idle now and then.
test: setup-tests ## lint, types, import rules and all tests
	@$(MAKE) --no-print-directory --jobs=2 checks tests

checks:
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/lint-imports
	$(BIN)/mypy $(TYPED)

tests:
	$(PY) -m pytest -q -m "not slow" --numprocesses=$(WORKERS) --dist=worksteal --durations=10

bench: setup ## a benchmark against a peer; NAME=count, QUICK=1 for a shorter run
ifdef NAME
	@$(PY) -m benchmarks.$(subst -,_,$(NAME)) $(if $(QUICK),--quick)
else
	@echo "Name a benchmark, for example: make bench NAME=count"
	@echo "There are: $(subst _,-,$(filter-out __init__ common histories instances open_loop timeline,$(basename $(notdir $(wildcard benchmarks/*.py)))))"
	@exit 2
endif

crash: setup-tests ## a kill at every step, on real Spark (make test runs ten of them); more examples of properties
	$(PY) -m pytest -v -m "crash or slow" --hypothesis-profile=thorough --ignore=tests/test_sizing_large.py
	$(PY) -m pytest -q -m "not crash and not slow and not spark" --hypothesis-profile=thorough \
	    --ignore=tests/crash tests

simulate: setup-tests ## a group in one thread with faults between any two calls; SEEDS=100000, FIRST=0
	$(PY) -m tests.simulation --seeds $(or $(SEEDS),10000) --first $(or $(FIRST),0) --mutations

soak: setup-tests ## kills, overlapping starts and changes of an app under load; MINUTES=30, SEED=1
	$(PY) -m tests.soak --minutes $(or $(MINUTES),30) --seed $(or $(SEED),1)

sizes: setup-tests ## compares `holdfast size` with an instance of 5 million keys
	$(PY) -m pytest -q -s tests/test_sizing_large.py

setup: ## the virtual environment, pinned dependencies and Java; quick when all of it exists
	@scripts/setup.sh

setup-tests:
	@scripts/setup.sh --tests

lock: setup ## writes the newest releases that fit pyproject.toml to requirements.lock
	$(BIN)/uv pip compile pyproject.toml --group dev --all-extras --universal --python-version 3.11 --upgrade \
	    --no-header --no-annotate --quiet --output-file requirements.lock

docs: setup ## writes docs/configuration.md from the settings
	$(PY) -m scripts.settings_page > docs/configuration.md

clean: ## removes the files of set-up, tests, the demo and the examples
	rm -rf .venv .tools .holdfast .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache \
	    spark-warehouse metastore_db derby.log build dist leaderboard
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
