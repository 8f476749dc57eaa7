# What a newcomer types. Only make, Python 3.11+ with venv, and the package index are needed, no
# root. Everything lives in .venv; uv is used where it is found, plain venv and pip do otherwise.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
UV ?= $(shell command -v uv 2>/dev/null)
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	if $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; \
	then command -v $$p; break; fi; done)

PROTOS := $(wildcard src/pinfold/adapters/*/*.proto)

# A test that waits for ever tells where, instead of taking the whole run with it.
PATIENCE := --timeout 600

MACHINE ?= 2s8c2t
ARGS ?=

ifneq ($(UV),)
MAKE_VENV = $(UV) venv --quiet --clear --python "$(PYTHON)" $(VENV)
INSTALL = $(UV) pip install --quiet --python $(BIN)/python
else
MAKE_VENV = "$(PYTHON)" -m venv --clear $(VENV)
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check
endif

.PHONY: help run test check bench soak bench-effect bench-fragmentation bench-suppression study e2e guest real-cluster trial fuzz mutants docs wheel venv lock clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

run: $(VENV)/.run  ## Set up, plan the example node, and show a live one
	$(BIN)/pinfold plan --machine $(MACHINE) --kubelet-config examples/kubelet.yaml $(ARGS) examples/pods
	@PINFOLD=$(BIN)/pinfold sh examples/demo.sh

test: $(VENV)/.dev  ## Run the tests (ARGS="-k word" and the like go to pytest)
	$(BIN)/python -m pytest -n auto $(PATIENCE) $(ARGS)

check: $(VENV)/.dev  ## Lint, check format, types and the layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.dev  ## Measure; table here, JSON and SVG in build/ (ARGS="merge.8x4 import" to choose)
	@mkdir -p build
	$(BIN)/python -m benchmarks --json build/benchmarks.json --svg build/benchmarks.svg $(ARGS)

soak: $(VENV)/.dev  ## As root: what an agent holds while pods come and go (SECONDS=3600; samples in build/soak.csv)
	@mkdir -p build
	$(BIN)/python -m benchmarks.soak --seconds $(or $(SECONDS),3600) --csv build/soak.csv $(ARGS)

bench-effect: $(VENV)/.dev  ## As root: a server beside its neighbours, by policy; ARGS=--docs writes the page and its picture
	@mkdir -p build
	$(BIN)/python -m benchmarks.effect --json build/effect.json --svg build/effect.svg $(ARGS)

bench-fragmentation: $(VENV)/.dev  ## What a stream of pods leaves of a node, static against dynamic; TRACE=FOLDER has the trace
	@mkdir -p build
	$(BIN)/python -m benchmarks.fragmentation $(TRACE) --json build/fragmentation.json --svg docs/pictures/fragmentation.svg $(ARGS)

bench-suppression: $(VENV)/.dev  ## How steady and how quick best-effort work is suppressed, simulated; TRACE=FOLDER has the trace
	@mkdir -p build
	$(BIN)/python -m benchmarks.suppression $(TRACE) --json build/suppression.json $(ARGS)

study: $(VENV)/.dev  ## What a policy costs on real arrivals, and the page of it; TRACES=FOLDER has the traces
	$(BIN)/python -m benchmarks.study "$(TRACES)" $(ARGS)

e2e: $(VENV)/.dev  ## Wheel in a fresh place; as root: crashes, confinement, shield, a real containerd
	@sh tests/e2e/install.sh
	$(BIN)/python -m pytest tests/e2e $(PATIENCE) $(ARGS)

guest: $(VENV)/.dev  ## As root: live tests in four guests (an hour): SMT, 2 NUMA nodes, huge pages, cgroup v2, v1
	$(BIN)/python -m pytest tests/guest/test_guest.py $(ARGS)

KUBERNETES ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/pinfold/kubernetes
real-cluster: $(VENV)/.dev  ## Against Kubernetes itself: of KUBEBUILDER_ASSETS, else built of Debian's source (minutes)
ifndef KUBEBUILDER_ASSETS
	sh tests/cluster/real/build.sh $(KUBERNETES)
endif
	KUBEBUILDER_ASSETS=$(or $(KUBEBUILDER_ASSETS),$(KUBERNETES)/bin) $(BIN)/python -m pytest tests/cluster/real $(ARGS)

trial: $(VENV)/.dev  ## As root: an agent under faults by chance (SECONDS=300, ARGS="--seed 7 --only hotplug" to choose)
	$(BIN)/python -m trial --seconds $(or $(SECONDS),300) $(ARGS)

fuzz: $(VENV)/.dev  ## Fuzz every parser (SECONDS=60 each, ARGS="quantity cpulist" to choose)
	$(BIN)/python -m fuzz --seconds $(or $(SECONDS),60) --corpus build/fuzz $(ARGS)

mutants: $(VENV)/.dev  ## Small changes that the tests have to notice (SAMPLE=50, ARGS="--seed 7 core state" to choose)
	$(BIN)/python -m mutants --sample $(or $(SAMPLE),50) $(ARGS)

docs: $(VENV)/.dev  ## Write docs/reference anew from the tables in the code
	$(BIN)/python docs/generate.py

wheel: $(VENV)/.dev  ## Build the wheel in dist/
	$(BIN)/python -m build --wheel --no-isolation --outdir dist

venv: $(VENV)/.dev  ## Set up .venv with all that development needs

# Resolves anew; the only target that needs uv. No index or path may appear in the files.
LOCK = $(if $(UV),$(UV),$(BIN)/uv) pip compile --quiet --universal --python-version 3.11 \
	--generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --no-header
lock:  ## Lock the newest versions of all requirements (needs uv)
	$(LOCK) --upgrade --extra agent --extra cluster pyproject.toml -o requirements.txt
	$(LOCK) --upgrade --group pyproject.toml:build -c requirements.txt -o requirements-build.txt
	$(LOCK) --upgrade --extra agent --extra cluster --extra dask --extra parquet --extra report pyproject.toml --group dev -c requirements.txt -c requirements-build.txt \
		-o requirements-dev.txt

clean:  ## Remove .venv and everything that was built
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

$(BIN)/python:
	@if [ -z "$(PYTHON)" ]; then \
		echo "Python 3.11 or newer is needed. Debian, Ubuntu: apt install python3 python3-venv" >&2; \
		exit 1; \
	fi
	@if [ -z "$(UV)" ] && ! "$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null; then \
		echo "$(PYTHON) lacks the module venv or ensurepip." >&2; \
		echo "Debian, Ubuntu: apt install python3-venv (or install uv)" >&2; \
		exit 1; \
	fi
	$(MAKE_VENV)

# A stamp is older than the requirements when these changed: then the environment is synced again.
# pip compiles what it installs but not what it links to, and an environment may keep Python from it.
$(VENV)/.run: requirements.txt requirements-build.txt pyproject.toml hatch_build.py $(PROTOS) | $(BIN)/python
	@if [ -z "$(UV)" ] && ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
		$(BIN)/python -m ensurepip >/dev/null; \
	fi
	$(INSTALL) --require-hashes -r requirements.txt -r requirements-build.txt
	$(INSTALL) --no-deps --no-build-isolation -e .
	@$(BIN)/python -m compileall -q src/pinfold
	@touch $@

$(VENV)/.dev: requirements-dev.txt $(VENV)/.run
	$(INSTALL) --require-hashes -r requirements-dev.txt
	@touch $@
