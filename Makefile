# Two commands matter: `make trial` and `make test`. Both set up the virtual environment first and are quick when it is done.
PYTHON ?= python3
VENV   ?= .venv
# Which build of torch: what `engine` in params.yaml computes on, unless the command line says otherwise.
TORCH  ?= $(shell grep -Eqs '^[^\#]*(device|backend): *"?cuda' params.yaml && echo cuda || echo cpu)
TIER   ?= int8
PORT   ?= 8000
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed-$(TORCH)

.PHONY: trial test test-engine test-others lint serve clean setup lock

trial: $(STAMP)
	@$(BIN)/python -m pipeline.trial

# The tests of the engine and all others, each in a process of its own beside the other: most of them keep one core busy.
# The kernels are built first, with both cores, so that neither waits for a build of the other.
test: lint
	@$(BIN)/python -c 'from engine.kernels.cpu.compile import load; load()'
	@$(MAKE) --no-print-directory --jobs 2 --keep-going test-engine test-others

test-engine: $(STAMP)
	$(BIN)/python -m pytest -o cache_dir=.pytest_cache/engine --durations 40 tests/engine

test-others: $(STAMP)
	$(BIN)/python -m pytest -o cache_dir=.pytest_cache/others --durations 40 --ignore tests/engine

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

serve: $(STAMP)
	$(BIN)/seatrial serve --artifact artifacts/$(TIER) --port $(PORT)

setup: $(STAMP)

$(STAMP): requirements/lock-$(TORCH).txt pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if v >= (3, 11) else "found Python %d.%d, expected 3.11 or newer: run make PYTHON=python3.11" % v)'
	$(PYTHON) -m venv $(VENV)
	@if [ $(TORCH) = cuda ] && $(BIN)/python -c 'import importlib.metadata as m; exit("+cpu" not in m.version("torch"))' 2>/dev/null; then \
	  $(BIN)/python -m pip uninstall --quiet --yes torch; fi  # of the same version, so that the next line would leave it
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/lock-$(TORCH).txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# The versions that are installed now become the locked ones; the CUDA lock keeps its own additions.
lock: $(STAMP)
	$(BIN)/python requirements/lock.py

# Removes what a trial made, not the virtual environment and not DVC's cache.
clean:
	rm -rf artifacts results reports .seatrial build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
