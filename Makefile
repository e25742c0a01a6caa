# Two commands matter: `make trial` and `make test`. Both set up the virtual environment first and are quick when it is done.
PYTHON ?= python3
VENV   ?= .venv
TORCH  ?= cpu
TIER   ?= int8
PORT   ?= 8000
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed-$(TORCH)

.PHONY: trial test lint serve clean setup lock

trial: $(STAMP)
	@$(BIN)/python -m pipeline.trial

test: lint
	$(BIN)/python -m pytest

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
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/lock-$(TORCH).txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# The versions that are installed now become the locked ones; the CUDA lock keeps its own additions.
lock: $(STAMP)
	$(BIN)/python requirements/lock.py

# Removes what a trial made, not the virtual environment and not DVC's cache.
clean:
	rm -rf artifacts results reports .seatrial build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
