# Needs Python >= 3.11 and make: whatever else a target uses is set up in $(VENV) first, once.
PYTHON ?= python3
VENV ?= .venv
# One release by name, so that pip prefers a CPU build of it that lies at hand; TORCH=torch takes the newest there is.
TORCH ?= torch==2.13.0

BIN := $(VENV)/bin
# As many workers as tests/conftest.py says; each takes tests from others when it has no more.
SPREAD := --numprocesses=auto --dist=worksteal
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Many a test starts Python: our sources are compiled once, and not by each, whatever the machine says.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo test slow ray mutants mutate soak isolation docs dist compat lint types format count gpu bench clean

help:  ## list the targets
	@sed -n 's/^\([a-z]*\):.*  ## /\1|/p' Makefile | awk -F'|' '{ printf "make %-10s%s\n", $$1, $$2 }'

demo: $(VENV)/.core  ## the main job on text that every machine has; downloads no data
	$(BIN)/brimful demo

test: lint types  ## lint, types, and all tests but the slow ones: 8 minutes
	$(BIN)/pytest $(SPREAD) -m "not slow and not mutant and not ray" $(ARGS)

slow: $(VENV)/.dev  ## the tests that take longest: laws, oracle, kills, code blocks of README, CONTRIBUTING and docs
	$(BIN)/pytest $(SPREAD) -m "slow and not mutant and not ray" $(ARGS)

ray: $(VENV)/.dev  ## tests on a Ray cluster of two workers, which this machine is
	$(BIN)/pytest -m "ray and not mutant" $(ARGS)

mutants: $(VENV)/.dev  ## whether the tests bite: 60 faults, each of which a test named for it must find; after a change of tests
	$(BIN)/pytest $(SPREAD) -m mutant tests/test_mutants.py $(ARGS)

mutate: $(VENV)/.dev  ## whether the tests bite elsewhere: 200 faults at random places against the tests of their rooms; an hour
	$(BIN)/python -m tools.mutate $(ARGS)

soak: $(VENV)/.dev  ## the tests for hours: new examples each time, 1,000 of each law, ten times the kills, Ctrl-C anywhere
	HYPOTHESIS_PROFILE=soak $(BIN)/pytest $(SPREAD) --timeout=7200 $(ARGS)

isolation: $(VENV)/.dev  ## which models of transformers keep samples apart: writes docs/isolation.md; minutes
	$(BIN)/python benchmarks/isolation.py $(ARGS)

docs: $(VENV)/.docs  ## the site, in site/: a warning, or a link or an anchor that leads nowhere, is an error
	$(BIN)/python -m doctest tools/docstrings.py
	$(BIN)/zensical build --clean --strict

dist:  ## wheel and sdist, checked, and the demo from the wheel in an empty environment; publishes nothing
	rm -rf dist build/dist && $(PYTHON) -m venv build/dist/tools && $(PYTHON) -m venv build/dist/empty
	build/dist/tools/bin/pip install -qq build twine
	build/dist/tools/bin/python -m build --outdir dist .
	build/dist/tools/bin/python -m build --outdir dist --wheel packages/plan
	build/dist/tools/bin/twine check --strict dist/*
	$(PYTHON) -m venv build/dist/plan && build/dist/plan/bin/pip install -qq dist/brimful_plan-*.whl
	cd build/dist && plan/bin/python -c 'import brimful_plan as plan; print(plan.TokenBudget(60).plan([50, 30, 20]))'
	build/dist/empty/bin/pip install -qq $(TORCH)
	build/dist/empty/bin/pip install -qq dist/brimful-*.whl
	cd build/dist && empty/bin/brimful demo

compat:  ## tests of what needs few extras, at the lowest versions that pyproject.toml allows (`make test` takes the newest)
	rm -rf build/lowest && $(PYTHON) -m venv build/lowest
	build/lowest/bin/pip install -qq $$($(PYTHON) -m tests.lowest) -e ".[cbor,hf,tiktoken]" hatchling hypothesis pytest pytest-timeout pytest-xdist psutil
	build/lowest/bin/python -m pytest $(SPREAD) -m "not mutant and not ray" $(ARGS) $$($(PYTHON) -m tests.lowest --tests)

lint: $(VENV)/.dev  ## rules and format, changing nothing
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/.dev  ## strict types
	$(BIN)/mypy

format: $(VENV)/.dev  ## mend what can be mended by itself
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

count: $(VENV)/.dev  ## lines of code by room
	$(BIN)/python -m tests.house

gpu: $(VENV)/.dev  ## tests and figures of a GPU, in 8 minutes, into build/gpu.json; small sizes on a CPU where there is none
	$(BIN)/python benchmarks/gpu.py $(ARGS)

bench: $(VENV)/.dev  ## every benchmark, each beside the limit that it runs against
	@for file in $(filter-out benchmarks/isolation.py benchmarks/gpu.py,$(wildcard benchmarks/[!_]*.py)); do echo "== $$file"; $(BIN)/python $$file || exit 1; done

clean:  ## remove the environment and the caches
	rm -rf $(VENV) .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist site

$(VENV)/.core: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("brimful needs Python >= 3.11; give PYTHON=..." if sys.version_info < (3, 11) else 0)'
	@echo "setting up $(VENV), a minute or two"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install -qq $(TORCH)
	@$(BIN)/pip install -qq -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	@$(BIN)/pip install -qq -e '.[dev]'
	@touch $@

$(VENV)/.docs: $(VENV)/.core
	@$(BIN)/pip install -qq -e '.[docs]'
	@touch $@
