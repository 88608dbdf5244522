# Everything runs from a fresh clone with Python 3.11+ and make: the first target to need it builds .venv.

PYTHON ?= python3
VENV   ?= .venv
# How many test processes, which wait for half of their time; and anything else for pytest, as in: make test ARGS='-k claims'
JOBS   ?= $(shell $(PYTHON) -c 'import os; print(os.cpu_count() * 2)')
ARGS   ?=

BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help demo test check bench mutate clean

help: ## say what there is to make
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(STAMP) ## a tour: jobs run, one fails and is retried, and a worker is killed
	$(BIN)/dibs demo

test: $(STAMP) ## run the tests on every engine (PostgreSQL comes with the dev dependencies)
	@# What was compiled is kept: else each of some thousand processes would compile everything anew.
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(ARGS)

check: $(STAMP) ## check format, lint, types, import layers and docs
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(if $(wildcard tests/test_docs.py),$(BIN)/python -m pytest -q tests/test_docs.py)

bench: $(STAMP) ## measure against the floor of each database
	$(BIN)/python -m benchmarks

mutate: $(STAMP) ## break the code in known ways, and see each breakage caught
	$(BIN)/python -m mutations

clean: ## remove what was built
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("dibs needs Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -e '.[dev]'
	@touch $@
