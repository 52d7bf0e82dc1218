# One command each: `make demo` shows Muster at work, `make test` checks everything.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SHELL := /bin/bash

.PHONY: help install demo test frameworks quick crash soak simulate-faults docs format lock clean packages

help:  ## Show this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(VENV)/.installed  ## Install the agent and the controller into .venv.

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Muster needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version)" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "this Python has no venv module; on Debian or Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[agent,controller]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[agent,controller,dev]'
	@touch $@

demo: install  ## Show Muster at work: four virtual nodes, no GPU.
	$(BIN)/muster demo

packages:  ## Install the Debian packages of the integration tests.
	@$(PYTHON) tests/packages.py install

# of the test processes, one that has nothing left takes over from those with long tests
test: $(VENV)/.installed-dev packages  ## Check everything: format, lint, types, import rules, all tests.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive reconciler agents tools
	$(BIN)/pytest -n 4 --dist worksteal --ignore tests/frameworks

# at most fifteen minutes, of which five are for the packages; without them it says so and is done
frameworks: $(VENV)/.installed-dev  ## Run programs of PyTorch, Lightning, Ray and others as jobs.
	@$(PYTHON) -m tests.frameworks.install
	timeout --kill-after 10 600 $(BIN)/pytest tests/frameworks

quick: $(VENV)/.installed-dev  ## Check format, lint, import rules and the fast unit tests.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/pytest -n 4 -m 'not slow' tests/unit

KILLS ?= 300
crash: $(VENV)/.installed-dev packages  ## Kill processes at bad moments (KILLS=300).
	$(BIN)/python -m tests.crash.storm --kills $(KILLS)

TASKS ?= 4000
# one node through a day's worth of tasks that fork, hide, hang and fill what they can
soak: $(VENV)/.installed-dev packages  ## Run a day of hostile tasks on one node (TASKS=4000).
	$(BIN)/python -m tests.soak --tasks $(TASKS)

SEEDS ?= 1000
PROCESSES ?= 1
# STATE=FILE remembers which seeds were told, so that a long run can be ended and taken up again
simulate-faults: $(VENV)/.installed-dev  ## Run seeded stories of faults (SEEDS=1000 PROCESSES=1 STATE=FILE).
	$(BIN)/python -m tests.simulation --seeds $(SEEDS) --processes $(PROCESSES) $(if $(STATE),--state $(STATE))

docs: $(VENV)/.installed-dev  ## Build the documentation site into site/.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "to read it: $(BIN)/mkdocs serve, or python3 -m http.server --directory site"

format: $(VENV)/.installed-dev  ## Format the code and fix what the linter can.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock: $(VENV)/.installed  ## Write locked.txt: every package with its hash, for installs that check them.
	$(BIN)/python -m tools.lock locked.txt

clean:  ## Remove .venv, .venv-frameworks and what was built.
	rm -rf $(VENV) .venv-frameworks demo dist site
