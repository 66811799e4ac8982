# Everything a developer types. `make help` lists it; `make demo` and `make test` set up what they need.
.DEFAULT_GOAL := help
.PHONY: help setup tmpdir demo test fix lock audit clean articles chaos soak soak-random bench-latency bench-recovery bench-awake
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

# One at a time: a second make waits for the first.
READY := $(MAKE) -s --question .venv/ready 2>/dev/null
setup: tmpdir ## make .venv with everything that demo and test need (about 100 s, once)
	@$(READY) || flock --nonblock Makefile true || echo "waiting for the setup of another make"
	@$(READY) || flock Makefile $(MAKE) -s .venv/ready

# Said at once, not when the setup, the demo or a test gets there. As root, Postgres runs as nobody.
tmpdir:
	@probe=$$(mktemp 2>/dev/null) && rm "$$probe" && { test "$$(id -u)" != 0 || \
	  setpriv --reuid=nobody --regid="$$(id -g nobody)" --clear-groups test -x "$$(dirname "$$probe")"; } || \
	  { echo "TMPDIR=$$TMPDIR: expected a folder to write to, which the user nobody may enter if you are root" >&2; exit 1; }

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

articles: setup ## both articles' statements and figures, then ours, into docs/benchmarks/articles.md (DATABASE_URL= to run elsewhere)
	@$(BIN)/python -m bench.articles

bench-latency: setup ## from a commit to its handler, step by step, into docs/benchmarks/latency.md
	@$(BIN)/python -m bench.latency

bench-recovery: setup ## how long after a kill jobs run again, without the sweep
	@$(BIN)/python -m bench.recovery

bench-awake: setup ## awake minutes and cost of a day, by way to wait, into docs/benchmarks/awake.md (4 minutes)
	@$(BIN)/python -m bench.awake

chaos: setup ## worker, server and network fail at each step; into docs/benchmarks/chaos.md (4 minutes)
	@$(BIN)/python -m bench.chaos
	@$(BIN)/python -m bench.deadlocks

soak: setup ## a million jobs with failures, crashes and restarts, into docs/benchmarks/soak.md (JOBS= for fewer; 30 to 45 minutes)
	@$(BIN)/python -m bench.soak

soak-random: setup ## random operations against the model, and random input, for long (90 minutes)
	@EXAMPLES=30000 $(BIN)/pytest tests/property
	@EXAMPLES=3000 $(BIN)/pytest -n $(JOBS) tests/fuzz

LOCK := $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-annotate --custom-compile-command "make lock"
lock: setup ## resolve the newest versions into the lock files
	@$(PIP) install -qq uv
	$(LOCK) --all-extras --group dev --output-file requirements-dev.lock pyproject.toml
	$(LOCK) --group cloud --output-file requirements-cloud.lock
	$(LOCK) --extra functions --output-file functions/requirements.txt pyproject.toml

# The newest auditor, in an environment of its own: it brings more packages than the product has.
# What the functions are packed with is a part of the first file.
AUDIT := .venv/audit/bin/pip-audit --vulnerability-service osv --disable-pip --require-hashes --progress-spinner off
audit: setup ## ask api.osv.dev whether what is pinned has known vulnerabilities
	@$(BIN)/python -m venv --clear --without-pip .venv/audit
	@$(PIP) --python .venv/audit install -qq pip-audit
	@for lock in requirements-dev.lock requirements-cloud.lock; do \
	  said=$$($(AUDIT) --requirement $$lock 2>&1) || case "$$said" in \
	    *onnection*|*imeout*) echo "audit: api.osv.dev cannot be reached from here, so nothing is known of $$lock" >&2; exit 1;; \
	    *) echo "$$lock: $$said" >&2; exit 1;; \
	  esac; echo "$$lock: $$said"; \
	done

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

# pip writes INSTALLER at the end; what was interrupted before would pass for installed.
.venv/project.ready: requirements-dev.lock pyproject.toml | .venv/pip.ready
	@for info in .venv/lib/python3*/site-packages/*.dist-info; do test -e "$$info/INSTALLER" || rm -rf "$$info"; done
	@$(PIP) $(INSTALL) -r requirements-dev.lock
	@$(PIP) install -qq --no-deps --no-build-isolation --editable .
	@touch $@

.venv/cloud.ready: requirements-cloud.lock | .venv/pip.ready
	@$(BIN)/python -m venv --clear --without-pip .venv/cloud
	@$(PIP) --python .venv/cloud $(INSTALL) -r requirements-cloud.lock
	@touch $@

.venv/debian.ready: local/debian.sh | .venv/pip.ready
	@local/debian.sh .venv/debian postgresql-15 pgbouncer
	@touch $@
