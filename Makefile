# `make demo` shows it at work, `make test` tests it. Each sets up .venv by itself, once, and again
# when pyproject.toml or constraints.txt have changed.

VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt

# Whichever of these is Python 3.11 or newer first. Yours: make PYTHON=/path/to/python3 test
PYTHONS := $(PYTHON) python3 python3.13 python3.12 python3.11
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))

.DEFAULT_GOAL := help
.PHONY: help demo test check clean-venv

help:
	@echo "make demo        tune a small real network and explain the result (installs what it needs)"
	@echo "make test        the fast tests, with the code in README.md and docs/"
	@echo "make check       lint, format, strict types, and the tests: what a change must pass"
	@echo "make clean-venv  remove .venv, to set it up anew"

demo: $(VENV)/ready-for-demo
	$(BIN)/freezethaw demo

test: $(VENV)/ready-for-dev
	$(BIN)/pytest

check: $(VENV)/ready-for-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/pytest

clean-venv:
	rm -rf $(VENV)

# A stamp is touched last, so an interrupted step is done again.

$(VENV)/created:
	@for python in $(PYTHONS); do \
	    if "$$python" -c '$(NEW_ENOUGH)' 2>/dev/null; then \
	        echo "Setting up $(VENV) with $$("$$python" --version)"; \
	        "$$python" -m venv --clear $(VENV) && touch $@ && exit 0; \
	        echo "error: $$python cannot make a virtual environment; on Debian and Ubuntu:" \
	             "apt install python3-venv" >&2; \
	        exit 1; \
	    fi; \
	done; \
	echo "error: freezethaw needs Python 3.11 or newer, and none of these is: $(PYTHONS)." \
	     "Install one, or name it: make PYTHON=/path/to/python3 ..." >&2; \
	exit 1

$(VENV)/ready-for-demo: $(VENV)/created pyproject.toml constraints.txt
	$(INSTALL) -e ".[demo]"
	@touch $@

# Everything that the demo needs is among it.
$(VENV)/ready-for-dev: $(VENV)/created pyproject.toml constraints.txt
	$(INSTALL) -e ".[dev]"
	@touch $(VENV)/ready-for-demo $@
