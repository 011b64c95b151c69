# Every target sets itself up first: see scripts/setup.sh. `make help` lists them.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo test bench crash sizes setup setup-tests lock docs clean

BIN := .venv/bin
PY := $(BIN)/python
CODE := $(wildcard src tests benchmarks examples scripts)
TYPED := $(wildcard src tests benchmarks examples scripts)

# The S3 server of the tests, where set-up could build it; tests say so when it is missing.
export HOLDFAST_VERSITYGW ?= $(CURDIR)/.tools/bin/versitygw

# Test processes side by side. Most tests wait for a process or a disk, so two fit two cores.
WORKERS ?= 2

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: setup ## a video game's scores, live, on this machine; SECONDS=30 ends it by itself
	@$(BIN)/holdfast demo $(if $(SECONDS),--seconds $(SECONDS))

test: setup-tests ## lint, types, import rules and all tests
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy $(TYPED)
	$(BIN)/lint-imports
	$(PY) -m pytest -q -m "not slow" --numprocesses=$(WORKERS) --dist=worksteal --durations=10

bench: setup ## a benchmark against a peer; NAME=count, QUICK=1 for a shorter run
ifdef NAME
	@$(PY) -m benchmarks.$(NAME) $(if $(QUICK),--quick)
else
	@echo "Say which one, for example: make bench NAME=count"
	@echo "There are: $(filter-out __init__ common histories,$(basename $(notdir $(wildcard benchmarks/*.py))))"
	@exit 2
endif

crash: setup-tests ## every kill at every step, on real Spark (make test runs a dozen of them)
	$(PY) -m pytest -v tests/crash

sizes: setup-tests ## what `holdfast size` says against an instance with 5 million keys
	$(PY) -m pytest -q -s tests/test_sizing_large.py

setup: ## the virtual environment, pinned dependencies and Java; quick when it is all there
	@scripts/setup.sh

setup-tests:
	@scripts/setup.sh --tests

lock: setup ## the newest versions that fit pyproject.toml, into requirements.lock
	$(BIN)/uv pip compile pyproject.toml --group dev --all-extras --universal --python-version 3.11 --upgrade \
	    --no-header --no-annotate --quiet --output-file requirements.lock

docs: setup ## docs/configuration.md from the settings themselves
	$(PY) -m scripts.settings_page > docs/configuration.md

clean: ## removes what set-up, tests and the demo made
	rm -rf .venv .tools .holdfast .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache \
	    spark-warehouse metastore_db derby.log build dist
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
