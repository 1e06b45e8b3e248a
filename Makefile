# One front door.  `make serve` and `make test` are all that a newcomer needs.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
MODEL  ?= fixtures/tiny-qwen3_5.ninfer
ARGS   ?=

.PHONY: soak serve test check lint types unit fuzz size clean help

help:            ## list the targets
	@grep -E '^[a-z]+: .*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 16

$(VENV)/.base: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -e .
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.base
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[dev]'
	@touch $@

serve: $(VENV)/.base   ## install and serve the bundled model on http://127.0.0.1:8080
	$(BIN)/ninfer serve $(MODEL) $(ARGS)

test: lint types unit  ## install and run every check that needs no GPU

check: lint types      ## lint and types only

lint: $(VENV)/.dev     ## ruff
	$(BIN)/ruff check ninfer tests scripts

types: $(VENV)/.dev    ## mypy --strict
	$(BIN)/mypy

unit: $(VENV)/.dev     ## pytest, CPU part
	$(BIN)/python -m pytest -n 2 --dist loadscope -m 'not cuda and not soak'

fuzz: $(VENV)/.dev     ## play 200,000 mutants against the HTTP room
	$(BIN)/python scripts/fuzz_http.py

soak: $(VENV)/.dev     ## the long runs: 20,000 simulated requests
	$(BIN)/python -m pytest -m soak

size: $(VENV)/.dev     ## print the size report
	$(BIN)/python tests/sizes.py ninfer

clean:                 ## remove the environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis out
