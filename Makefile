# make demo   fetch the embedded target, decode the built-in requests, write runs/demo
# make test   lint and all tests
# Both do everything on a fresh machine; only python3 (3.11 or later), pip and make must be there.

SHELL := /usr/bin/env bash
PYTHON ?= python3
# Optional: one more package index for pip. On Linux without a GPU, PyTorch's CPU wheel index saves some 3 GB.
TORCH_INDEX ?=
METHODS ?= ar,pld,schemafill
SUITE ?= demo
OUT ?= runs/demo

BIN := .venv/bin
PYTHON_VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
STAMP := .venv/.setup-$(PYTHON_VERSION)
PIP := $(BIN)/python -m pip --disable-pip-version-check install
# One line that moves instead of pip's hundreds; all of them are in .venv/setup.log, the errors are shown.
SHOW := awk '$$1 == "Collecting" { printf "\r  %-70s", $$2 } $$1 == "Installing" { printf "\r  %-70s", "unpacking" } \
  { fflush() } END { printf "\r%-72s\r", "" }'

.PHONY: help setup fetch demo test lint clean

help:
	@echo "make demo | test | setup | fetch | lint | clean"

# The stamp carries the Python version, so another python3 sets up anew; it is written last, so a broken set-up repeats.
setup: $(STAMP)

$(STAMP): pyproject.toml requirements/lock.txt requirements/dev.txt requirements/no_deps.txt
	@test -n "$(PYTHON_VERSION)" || { echo "error: no working $(PYTHON); install Python 3.11 or later" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $(PYTHON) is Python $(PYTHON_VERSION); 3.11 or later is needed (make PYTHON=python3.12 ...)" >&2; exit 1; }
	@if [ "$$($(BIN)/python -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = "$(PYTHON_VERSION)" ] \
	  && $(BIN)/python -m pip --version >/dev/null 2>&1; \
	  then echo "[1/3] .venv is there (Python $(PYTHON_VERSION))"; \
	  else echo "[1/3] creating .venv (Python $(PYTHON_VERSION))"; $(PYTHON) -m venv --clear .venv; fi
	@echo "[2/3] installing pinned requirements (the first time about 1 GB, some minutes)"
	@set -o pipefail; $(PIP) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -r requirements/lock.txt \
	  -r requirements/dev.txt 2>&1 | tee .venv/setup.log | $(SHOW) || \
	  { grep -A 20 -i '^ *error' .venv/setup.log >&2 || tail -n 20 .venv/setup.log >&2; exit 1; }
	@$(PIP) --quiet --no-deps -r requirements/no_deps.txt
	@echo "[3/3] installing schemafill itself"
	@$(PIP) --quiet --no-deps --no-build-isolation --editable .
	@rm -f .venv/.setup-*
	@touch $@

fetch: setup
	@$(BIN)/schemafill fetch-target embedded

demo: fetch
	@$(BIN)/schemafill bench --target embedded --suite $(SUITE) --methods $(METHODS) --out $(OUT)
	@$(BIN)/schemafill report $(OUT)

# A missing target would skip the tests that matter most; here it is a failure.
test: fetch
	@$(BIN)/ruff check .
	@SCHEMAFILL_REQUIRE_TARGET=1 $(BIN)/pytest --quiet
	@echo "make test: lint and tests passed"

lint: setup
	@$(BIN)/ruff check .

clean:
	@rm -rf build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -not -path "./.venv/*" -prune -exec rm -rf {} +
