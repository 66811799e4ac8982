# The functions' package: `sam build` runs build-<Function> here, once per function. All three get the
# same tree. What is installed is kept under .aws-sam, so that only the first build takes seconds.
#
# sam does not tell a make target the runtime and the architecture it builds for: whoever calls it sets
# the two variables to what the stack's parameters Runtime and Architecture say. `make build` does.
.PHONY: build build-WorkerFunction build-ReaperFunction build-MigrateFunction

RUNTIME ?= python3.13
ARCHITECTURE ?= arm64
# The folder of your handlers, packed under its own name; its requirements.txt, if any, is installed too.
TASKS_FOLDER ?=
# The glibc releases whose wheels run there: Amazon Linux 2 (python3.11) has 2.26, 2023 has 2.34.
GLIBC ?= $(if $(filter python3.11,$(RUNTIME)),17,17 28 34)
# What our own part may weigh unpacked, in bytes; boto3 (33 MB) is left out, the runtime brings it.
PACKAGE_LIMIT := 20000000

MACHINE := $(if $(filter arm64,$(ARCHITECTURE)),aarch64,x86_64)
PACKAGE_PIP := $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m pip --disable-pip-version-check
WHEELS := -qq --no-compile --only-binary=:all: --implementation cp --python-version $(RUNTIME:python%=%) \
  $(foreach minor,$(GLIBC),--platform manylinux_2_$(minor)_$(MACHINE)) --platform manylinux2014_$(MACHINE)
# Named by what it was made from: a change makes a new one, and two builds at once do not meet.
MADE_FROM := $(shell cat functions/requirements.txt infra/package.mk | cksum | cut -d ' ' -f 1)
INSTALLED := .aws-sam/package/$(RUNTIME)-$(ARCHITECTURE)-$(lastword $(GLIBC))-$(MADE_FROM)

SAM := $(firstword $(wildcard $(BIN)/sam) sam)
export RUNTIME ARCHITECTURE TASKS_FOLDER
# sam tells nobody of us, and keeps its own files here, not in the home folder.
export SAM_CLI_TELEMETRY := 0
export __SAM_CLI_APP_DIR := $(CURDIR)/.aws-sam/cli
build: ## pack the functions: make build TASKS_FOLDER=app RUNTIME=python3.13 ARCHITECTURE=arm64
	@case "$(ARCHITECTURE)" in arm64|x86_64) ;; *) echo "ARCHITECTURE=$(ARCHITECTURE): arm64 or x86_64 is expected" >&2; exit 1;; esac
	$(SAM) build --parameter-overrides Runtime=$(RUNTIME) Architecture=$(ARCHITECTURE)

build-WorkerFunction build-ReaperFunction build-MigrateFunction: $(INSTALLED)
	@test -d "$(TASKS_FOLDER)" || { echo "TASKS_FOLDER=$(TASKS_FOLDER): expected the folder of your handlers" >&2; exit 1; }
	cp -a $(INSTALLED)/. pgq_core functions "$(ARTIFACTS_DIR)"
	@name=$$(basename "$(TASKS_FOLDER)") && test ! -e "$(ARTIFACTS_DIR)/$$name" || \
	  { echo "TASKS_FOLDER=$(TASKS_FOLDER): expected a folder whose name ($$name) the package does not have yet" >&2; exit 1; }
	@size=$$(find "$(ARTIFACTS_DIR)" -type f ! -name '*.pyc' -exec cat {} + | wc -c); \
	  test "$$size" -le $(PACKAGE_LIMIT) || { echo "the package has $$size bytes, at most $(PACKAGE_LIMIT) are allowed" >&2; exit 1; }
	cp -a "$(TASKS_FOLDER)" "$(ARTIFACTS_DIR)"
	@test ! -f "$(TASKS_FOLDER)/requirements.txt" || \
	  $(PACKAGE_PIP) install $(WHEELS) --target "$(ARTIFACTS_DIR)" --requirement "$(TASKS_FOLDER)/requirements.txt"
	@find "$(ARTIFACTS_DIR)" -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED):
	@mkdir -p .aws-sam/package
	@new=$$(mktemp -d .aws-sam/package/new.XXXXXX) && trap 'rm -rf "$$new"' EXIT && \
	$(PACKAGE_PIP) install $(WHEELS) --no-deps --require-hashes --target "$$new/tree" --requirement functions/requirements.txt || \
	  { echo "no wheels for $(RUNTIME) on $(ARCHITECTURE), or no package index; python3.11 on arm64 has too old a glibc for psycopg" >&2; exit 1; } && \
	rm -rf "$$new/tree/bin" && find "$$new/tree" -name '*.pyi' -delete && \
	{ mv -T "$$new/tree" $@ 2>/dev/null || test -d $@; }
