# make demo needs nothing but Python 3.11 or newer, git and make; the environment is made in .venv on first use and
# again when pyproject.toml or constraints.txt change. With uv: make PIP_INSTALL="uv pip install -q -c constraints.txt" demo.

BIN := .venv/bin
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
PIP_INSTALL ?= $(BIN)/python -m pip install -qq --disable-pip-version-check --no-input -c constraints.txt
OUT ?= runs/demo
WORKERS ?= auto
# jaxlib 0.10 compiles faster without fusion emitters, into slower programs; later versions have no such flag. Users have
# them, as make test-long has; make test, make docs and make notebooks have not.
EMITTERS = $(shell $(BIN)/python -c 'from importlib.metadata import version as v; v("jaxlib") < "0.11" and print("--xla_cpu_use_fusion_emitters=")')

# to compile faster still, into slow programs; most notebooks compile for longer than they run
QUICK = --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true

# a tenth of the time of tracing: programs do not remember the lines of Python that they come from
NO_LINES = JAX_TRACEBACK_IN_LOCATIONS_LIMIT=0

.DEFAULT_GOAL := help
.PHONY: help demo test test-long check format bench docs notebooks jupyter tables wheel coverage install clean

help: ## show this
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' Makefile | expand -t 10

demo: .venv/.run ## the main job in a few minutes: eight methods of the SRPFL paper on scikit-learn's digits
	@$(BIN)/fedjax-srp demo --out $(OUT)

test: .venv/.dev ## the tests; ARGS="-k name" for some
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -q $(ARGS)

test-long: .venv/.dev ## the tests that take long: more cases, scripts of experiments, the benchmark, laws of large numbers
	@XLA_FLAGS=$(addsuffix true,$(EMITTERS)) $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -q -m long

check: .venv/.dev ## lint, format and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright
	@$(BIN)/lint-imports --no-cache --no-logo

format: .venv/.dev ## mend lint and format
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: .venv/.run ## rounds and evaluations timed on this machine, beside PyTorch where it is installed
	@$(BIN)/python benchmarks/rounds.py

docs: .venv/.docs ## the manual, into docs/_build
	@$(NO_LINES) XLA_FLAGS="$(addsuffix false,$(EMITTERS)) $(QUICK)" $(BIN)/python -m sphinx -q -W --keep-going -j 4 -b html docs docs/_build

notebooks: .venv/.docs ## the notebooks executed, as they are committed; make jupyter opens them
	@XLA_FLAGS=$(addsuffix false,$(EMITTERS)) $(BIN)/python docs/execute.py

jupyter: .venv/.jupyter ## JupyterLab on the notebooks
	@$(BIN)/jupyter lab notebooks

tables: .venv/.run ## what pages take from the registry of methods and from committed results
	@for script in docs/tables.py docs/readme_tables.py experiments/claims.py experiments/*/readme_tables.py; do \
		$(BIN)/python $$script || exit 1; \
	done

wheel: .venv/.dev ## build the package, and use it in an empty environment outside of this folder
	@$(NO_LINES) XLA_FLAGS="$(addsuffix false,$(EMITTERS)) $(QUICK)" $(BIN)/python .ci/wheel.py $(ARGS)

coverage: .venv/.dev ## the tests, and which lines of the package none of them runs, in htmlcov
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -q --cov --cov-report html $(ARGS)

install: .venv/.dev ## the environment for work on the package

clean: ## remove caches and what was built; not .venv, not runs
	@rm -rf .pytest_cache .ruff_cache .hypothesis .coverage htmlcov docs/_build dist
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

.venv/.run: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer found: install one, or make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing the package into .venv"
	@$(PIP_INSTALL) -e ".[all]"
	@touch $@

.venv/.dev: .venv/.run
	@echo "installing the tools of its developers"
	@$(PIP_INSTALL) -e ".[dev]"
	@touch $@

.venv/.docs: .venv/.dev
	@echo "installing the tools of the manual"
	@$(PIP_INSTALL) -e ".[dev,docs]"
	@touch $@

.venv/.jupyter: .venv/.docs
	@echo "installing JupyterLab"
	@$(PIP_INSTALL) -e ".[dev,docs,jupyter]"
	@touch $@
