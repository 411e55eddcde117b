# make bench: the comparison. make test: lint, types, import rules and the quick tests. make test-all: the slow tests, which
# make test leaves out. make setup: the environment that all of them need, installed once; make bench does without its
# tools for tests.

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
# fbgemm's build follows the machine: CUDA where the driver shows a device, else CPU.
BUILD ?= $(shell nvidia-smi -L >/dev/null 2>&1 && echo cuda || echo cpu)
# torch, with the fbgemm and torchrec that belong to it: requirements/torch-*.txt are the versions that are tested.
TORCH ?= $(if $(filter cuda,$(BUILD)),2.14,2.13)
TRIPLE := requirements/torch-$(TORCH).txt
# Modules are compiled when they are first imported: most never are, and pip would compile all on one core. ColossalAI comes
# without its dependencies, of which pip would complain in red.
INSTALL = $(RUN) -m pip install --disable-pip-version-check --quiet --no-compile --no-warn-conflicts -c $(TRIPLE)
# Test files are shared out to a process per core, four at most; where tests measure a GPU's memory there is one process.
JOBS ?= $(if $(filter cuda,$(BUILD)),0,auto)

# A machine that writes no compiled modules would compile torch, sympy and fbgemm in every process, ten seconds each.
export PYTHONDONTWRITEBYTECODE :=

RUN := $(VENV)/bin/python
READY := $(VENV)/.ready-$(BUILD)-$(TORCH)
TOOLS := $(VENV)/.ready-tools

.PHONY: bench test test-all test-virtual-cuda setup lint microbench clean

bench: $(READY)
	$(RUN) run_bench.py $(ARGS)

PYTEST := $(RUN) -m pytest --numprocesses $(JOBS) --maxprocesses 4 --dist loadfile

test: setup lint
	$(PYTEST) -m "not slow" $(ARGS)

test-all: setup
	$(PYTEST) -m slow --durations=15 $(ARGS)

# The CUDA path on a device that is played by host memory, with the builds for CUDA in an environment of their own.
VIRTUAL := .venv-virtual-cuda
ON_VIRTUAL = $(VIRTUAL)/bin/python tests/virtual_cuda/run.py --late $(VIRTUAL)/bin/python -m pytest --numprocesses auto --maxprocesses 4

test-virtual-cuda:
	$(MAKE) setup BUILD=cuda TORCH=2.14 VENV=$(VIRTUAL)
	$(ON_VIRTUAL) --dist loadfile -m "not slow" tests/contract tests/unit/systems tests/unit/suite/run
	$(ON_VIRTUAL) --dist loadgroup tests/cuda $(ARGS)

setup: $(READY) $(TOOLS)

lint: setup
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	$(VENV)/bin/lint-imports

# Micro-benchmarks with one thread, as their limits were made, then the ratio gate; with ARGS they are only measured.
microbench: setup
	@mkdir -p .benchmarks
	OMP_NUM_THREADS=1 POLARS_MAX_THREADS=1 $(RUN) -m pytest tests/bench --benchmark-enable --benchmark-only \
	  --benchmark-sort=name --benchmark-json=.benchmarks/microbench.json $(ARGS)
	$(if $(ARGS),,$(RUN) results/microbench/ratio_gate.py .benchmarks/microbench.json)

clean:
	rm -rf $(VENV) results/records results/tables results/logs

$(READY): $(TRIPLE) requirements/base.txt requirements/$(BUILD).txt requirements/no-deps.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is older than Python 3.11: run make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -r requirements/base.txt -r requirements/$(BUILD).txt
	$(INSTALL) --no-deps -r requirements/no-deps.txt
	@rm -f $(VENV)/.ready-* && touch $(READY)
	@echo "Installed for $(BUILD), with torch $(TORCH), in $(VENV)."

$(TOOLS): $(READY) requirements/dev.txt
	$(INSTALL) -r requirements/base.txt -r requirements/dev.txt
	$(INSTALL) --no-deps --editable .
	@touch $(TOOLS)
