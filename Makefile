# Everything a developer types. `make help` lists it; `make demo` and `make test` set up what they need.
.DEFAULT_GOAL := help
.PHONY: help setup demo test fix lock clean bench-latency
SHELL := /bin/sh

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
CODE := $(wildcard pgq_core functions local examples tests bench)
# Test processes: one Postgres each.
JOBS ?= 2

-include infra/package.mk

help: ## list these commands
	@sed -nE 's/^([a-z-]+):.*## (.*)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

setup: .venv/ready ## make .venv with everything that demo and test need (about 100 s, once)

demo: setup ## run the whole queue on this machine: sign-ups in, mails out, through a deployed stack
	@$(BIN)/python -m examples.signups.demo

test: setup ## the one gate: format, lint, types, tests
	@$(BIN)/ruff format --check . || { echo "to mend: make fix"; exit 1; }
	@$(BIN)/ruff check . || { echo "to mend what can be mended by itself: make fix"; exit 1; }
	@$(BIN)/mypy $(CODE) || { echo "to see it again: $(BIN)/mypy $(CODE)"; exit 1; }
	@$(BIN)/pytest -n $(JOBS) --dist loadgroup || { echo "to see the failures alone: $(BIN)/pytest --last-failed"; exit 1; }
	@$(BIN)/pytest -n $(JOBS) --pg 15 tests/sql || { echo "to see it again: $(BIN)/pytest --pg 15 tests/sql"; exit 1; }

fix: setup ## format, and mend what the linter can
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

bench-latency: setup ## from a commit to its handler, step by step, into docs/benchmarks/latency.md
	@$(BIN)/python -m bench.latency

LOCK := $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-annotate --custom-compile-command "make lock"
lock: setup ## resolve the newest versions into the two lock files
	@$(PIP) install -qq uv
	$(LOCK) --all-extras --group dev --output-file requirements-dev.lock pyproject.toml
	$(LOCK) --group cloud --output-file requirements-cloud.lock

clean: ## remove .venv and every other thing made here
	rm -rf .venv dist .aws-sam .hypothesis .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- what setup makes, each part again only when what it is made from has changed ----------------------

INSTALL := install -qq --no-deps --require-hashes --no-warn-script-location
.venv/ready: .venv/pip.ready .venv/project.ready .venv/cloud.ready .venv/debian.ready
	@touch $@

.venv/pip.ready: local/venv.sh
	@echo "setting up .venv (about 100 s, once)"
	@PYTHON=$(PYTHON) local/venv.sh
	@touch $@

.venv/project.ready: requirements-dev.lock pyproject.toml | .venv/pip.ready
	@$(PIP) $(INSTALL) -r requirements-dev.lock
	@$(PIP) install -qq --no-deps --no-build-isolation --editable .
	@touch $@

.venv/cloud.ready: requirements-cloud.lock | .venv/pip.ready
	@$(BIN)/python -m venv --clear --without-pip .venv/cloud
	@$(PIP) --python .venv/cloud $(INSTALL) -r requirements-cloud.lock
	@touch $@

.venv/debian.ready: local/debian.sh
	@mkdir -p .venv
	@local/debian.sh .venv/debian postgresql-15 pgbouncer
	@touch $@
