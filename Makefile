# Two commands do all the set-up on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
TEST_STAMP := $(VENV)/.installed-test
LINT_STAMP := $(VENV)/.installed-lint

.PHONY: demo test check interop interop-smoke bench clean venv

demo: $(STAMP)
	@$(BIN)/ottla demo

test: $(TEST_STAMP)
	$(BIN)/python -m pytest -m "not interop" -n auto

check: $(LINT_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

interop: $(TEST_STAMP)
	$(BIN)/python -m pytest -m interop tests/interop

interop-smoke: $(TEST_STAMP)
	$(BIN)/python -m pytest -m "interop and smoke" tests/interop

bench: $(TEST_STAMP)
	$(BIN)/python -m bench

$(VENV)/bin/python:
	@command -v $(PYTHON) >/dev/null || { echo "ottla: $(PYTHON) not found; Python 3.11 or newer is needed" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "ottla: Python 3.11 or newer is needed, $(PYTHON) is $$($(PYTHON) -V)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(STAMP): pyproject.toml setup.py $(wildcard src/ottla/records/_kernel*.[ch]) | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(TEST_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "pip>=25.1"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group test
	@touch $@

$(LINT_STAMP): $(TEST_STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group lint
	@touch $@

venv: $(LINT_STAMP)

clean:
	rm -rf $(VENV) build src/ottla.egg-info src/ottla/records/*.so .mypy_cache .ruff_cache .pytest_cache .hypothesis
