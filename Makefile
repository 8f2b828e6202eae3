# The project's commands. `make run` and `make test` set everything up by themselves.
#   make run ARGS="--profile smoke-local"      another profile
#   make run TORCH_INDEX=<index URL>           where pip finds CPU builds of torch (else pip's own configuration)
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip --disable-pip-version-check install -q -c constraints.txt
ARGS   ?=
WORKERS ?= 2
# Several workers share the tests, a file of them on one worker (tests/workers.py); ARGS="-n0 --pdb" is one process.
SHARED := -n $(WORKERS) --dist loadfile --no-loadscope-reorder
TORCH_INDEX ?=

.PHONY: run test test-hosts bench soak soak-hosts check clean
.DEFAULT_GOAL := run

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# torch goes first and alone: a resolver that sees it together with the rest may take a build with gigabytes of CUDA.
$(VENV)/.run: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch==2.13.0
	$(PIP) -e '.[train]'
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	$(PIP) -e '.[train,data,mlperf,export,serve,dev]'
	@touch $@

run: $(VENV)/.run
	$(BIN)/ekvi-cockpit run $(if $(findstring --profile,$(ARGS)),,--profile duel-local) $(ARGS)

test: $(VENV)/.dev
	$(BIN)/python -m pytest $(SHARED) -m "not hosts and not soak" $(ARGS)

test-hosts: $(VENV)/.dev
	tests/hosts/setup.sh
	$(BIN)/python -m pytest $(SHARED) -m "hosts and not soak" $(ARGS)

bench: $(VENV)/.dev
	$(BIN)/python -m tests.bench $(ARGS)

soak: $(VENV)/.dev
	$(BIN)/python -m pytest -m "soak and not hosts" --timeout 7200 $(ARGS)

soak-hosts: $(VENV)/.dev
	tests/hosts/setup.sh
	$(BIN)/python -m pytest -m "soak and hosts" --timeout 7200 $(ARGS)

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

clean:
	rm -rf build dist .mypy_cache .ruff_cache .import_linter_cache
