# Everything here sets itself up, and can be repeated cheaply: the environment is rebuilt when pyproject.toml changes.
PYTHON ?= $(shell for v in 3.13 3.12 3.11; do command -v python$$v >/dev/null 2>&1 && python$$v -c 'import venv, ensurepip' >/dev/null 2>&1 && { echo python$$v; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help env demo test test-rest test-all test-kernels gpu check stubs docs dist clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

env: $(READY)  ## the environment .venv with everything in it

$(READY): pyproject.toml
	@test -n "$(PYTHON)" || { echo "protoseal needs Python 3.11, 3.12 or 3.13; name one: make PYTHON=/path/to/python3.12"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $(READY)

demo: $(READY)  ## five sites and a coordinator on this machine, with real certificates and encryption
	$(BIN)/protoseal demo --out runs/demo

# Files in the order of tests/conftest.py, the longest first, and not those of many tests first.
# Without byte code each process compiles all tests anew, for ten seconds, and each party its modules.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

test: $(READY)  ## the tests that every change runs, a process for each core
	$(PYTEST) -m "not full" --hypothesis-profile=repeatable

# Only the files with such tests, since collecting the tests of all files takes half a minute.
FULL = $(shell grep -rlE 'mark\.full|full_but' tests --include='test_*.py')

test-rest: $(READY)  ## the tests that `make test` leaves out
	$(PYTEST) -m full $(FULL)

test-all: $(READY)  ## every test
	$(PYTEST)

# With kernels that every x86-64 processor has, rounding differs from that of the machine's own.
NUMERICAL := tests/algorithms $(wildcard tests/secure_client/test_*.py) \
	$(addprefix tests/secure_client/,data exchanges models protocol checkpoints training) \
	tests/secure_client/privacy/test_features_independent_of_batch.py tests/protoseal/simulation/batched

test-kernels: $(READY)  ## numerical tests again, with the kernels of the oldest processors
	ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 \
		$(PYTEST) $(NUMERICAL)

# Without an environment any Python with the packages will do: a machine with a card may have no network to build one.
gpu:  ## check and measure the GPU of this machine, with PYTHON where there is no environment
	PYTHONPATH=.:proto:$$PYTHONPATH $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m benchmarks.gpu

check: $(READY)  ## lint, formatting, types, layers, size, and that the generated stubs are current
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy .
	$(BIN)/lint-imports --no-cache
	$(BIN)/python scripts/size.py
	scripts/stubs.sh --check

stubs:  ## regenerate the protobuf stubs
	scripts/stubs.sh

docs: $(READY)  ## the documentation site in build/site, every link and anchor checked
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

dist: $(READY)  ## source archive and wheel in dist/, with a bill of materials, checked and installed once
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[release]'
	scripts/dist.sh $(BIN)/python

clean:  ## remove the environment and what the tools left
	rm -rf $(VENV) .venv-stubs build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
