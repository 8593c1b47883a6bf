# `make run` tunes a real vLLM on this machine's CPU; `make test` checks everything. Neither asks a question, and
# both may be repeated: what is already there is kept.

VENV  := .venv
PY    := $(VENV)/bin/python
UV    := uv==0.13.9

# A stamp names what was installed: with other pins it has another name, and the installation is brought up to date.
CORE := $(VENV)/.core-$(shell cat requirements/core.lock pyproject.toml | cksum | tr ' ' '-')
DEV  := $(VENV)/.dev-$(shell cat requirements/dev.lock pyproject.toml | cksum | tr ' ' '-')

INSTALL := $(PY) -m pip install -qq --disable-pip-version-check
NETWORK := { echo "The installation failed (see above). Check the network and pip's settings (pip config list), then run the same command again." >&2; exit 2; }

.DEFAULT_GOAL := help
.PHONY: help run demo test test-all lint engine lock clean

help:
	@echo "make run    tune a real vLLM on this machine's CPU with a small model (needs about 4 GB of disk)"
	@echo "make demo   the same on a simulated engine, within a minute of the installation"
	@echo "make test   lint, types, and tests, those on the real vLLM included; test-all: the longest too"
	@echo "make lint   ruff and mypy only"
	@echo "make engine prepare the real vLLM and the model only"
	@echo "make lock   renew the locks in requirements/ (UPGRADE=--upgrade takes newer releases)"
	@echo "make clean  remove the virtual environment and caches of this checkout"

run: engine
	@$(VENV)/bin/autotune run studies/quickstart.yaml

demo: $(CORE)
	@$(VENV)/bin/autotune run studies/demo.yaml

engine: $(CORE)
	@$(PY) -m autotune.engine.cpu_setup

# Status 3: this machine cannot run the real engine. Its tests are skipped then, with the reason.
test: lint
	@$(PY) -m autotune.engine.cpu_setup || [ $$? -eq 3 ]
	@echo "Unit and contract tests, two at a time"
	@$(VENV)/bin/pytest -q -m "not gpu and not long" -n 2 --dist loadfile tests/unit tests/contract $(PYTEST_ARGS)
	@echo "The whole command line on the simulator, and scripted faults, two at a time"
	@$(VENV)/bin/pytest -q -m "not gpu and not long" -n 2 --dist loadfile tests/e2e tests/faults tests/cluster $(PYTEST_ARGS)
	@echo "The real vLLM on the CPU"
	@$(VENV)/bin/pytest -q -m "not gpu and not long" tests/engine $(PYTEST_ARGS)

test-all: test
	@echo "What takes minutes: on the real vLLM, and a year of re-tuning"
	@$(VENV)/bin/pytest -q -m "long and not gpu" tests/e2e tests/engine $(PYTEST_ARGS)

lint: $(DEV)
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy

# PYTHON=... chooses the interpreter.
$(PY):
	@for python in $${PYTHON:-python3 python3.13 python3.12 python3.11}; do \
	  if $$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then \
	    echo "New environment $(VENV) with $$($$python --version)"; \
	    $$python -m venv --clear $(VENV) && exit 0; \
	    rm -rf $(VENV); echo "Debian, Ubuntu: apt install python3-venv; then run the same command again." >&2; exit 2; \
	  fi; \
	done; \
	echo "Python 3.11, 3.12 or 3.13 is needed and was not found (tried: $${PYTHON:-python3, python3.13, python3.12, python3.11})." >&2; \
	echo "Install one, or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3" >&2; exit 2

$(CORE): | $(PY)
	@echo "Installing autotune and its pinned dependencies"
	@$(INSTALL) --require-hashes -r requirements/core.lock || $(NETWORK)
	@$(INSTALL) --no-deps --no-build-isolation --editable . || $(NETWORK)
	@touch $@

$(DEV): | $(PY)
	@echo "Installing autotune, its pinned dependencies and the tools for its tests"
	@$(INSTALL) --require-hashes -r requirements/dev.lock || $(NETWORK)
	@$(INSTALL) --no-deps --no-build-isolation --editable . || $(NETWORK)
	@touch $@ $(CORE)

# Universal: one file for Python 3.11 to 3.13 and every platform, with hashes, naming no index.
LOCK := $(VENV)/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
  --no-emit-index-url --no-annotate --no-header $(UPGRADE)

lock: $(DEV)
	@$(INSTALL) $(UV)
	@$(LOCK) pyproject.toml requirements/build.in --extra dev -o requirements/dev.lock
	@$(LOCK) pyproject.toml requirements/build.in -c requirements/dev.lock -o requirements/core.lock
	@cd autotune/engine/cpu_setup && ../../../$(LOCK) --no-deps engine.in -o engine.lock
	@$(PY) -m pip uninstall -qq --yes uv
	@git --no-pager diff --stat -- requirements autotune/engine/cpu_setup/engine.lock

clean:
	@rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@echo "Removed. The real engine stays in its cache ($${AUTOTUNE_CACHE:-$${XDG_CACHE_HOME:-$$HOME/.cache}/autotune}); results stay in studies/."
