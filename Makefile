# make run    sets up what is missing and starts Hub
# make test   sets up what is missing, then lint, types, import contracts and tests
# make bench  measures the queue and the pages
# make soak   three minutes of jobs and faults: SOAK_SECONDS, SOAK_JOBS and SOAK_SEED say how long, how many, which
# make clean  stops the tests' database server and removes what make made, but not the data under var/

PYTHON ?= python3
BIN := .venv/bin
RUN_TESTS ?= -n 2 --dist loadgroup
MAKEFLAGS += --no-print-directory

.PHONY: run test lint bench soak setup setup-dev have-python format lock clean

run: setup
	@exec $(BIN)/hub up

test: setup-dev
	@$(MAKE) lint
	$(BIN)/python -m pytest $(RUN_TESTS)

lint: setup-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: setup-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

ifneq ($(wildcard tests/bench),)
bench: setup-dev
	$(BIN)/python -m tests.bench
endif

ifneq ($(wildcard tests/soak),)
soak: setup-dev
	$(BIN)/python -m tests.soak
endif

setup: have-python
	@$(PYTHON) tools/setup.py runtime

setup-dev: have-python
	@$(PYTHON) tools/setup.py dev

have-python:
	@command -v "$(PYTHON)" >/dev/null || { echo "hub: There is no $(PYTHON) here: install Python 3.11 or newer, or name yours with 'make PYTHON=...'." >&2; exit 1; }

# For whoever changes requirements.in; needs uv. No address gets into the locks.
LOCK := uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate
lock:
	$(LOCK) requirements.in -o requirements.lock
	$(LOCK) requirements-dev.in -o requirements-dev.lock

clean:
	@if [ -x $(BIN)/python ]; then $(BIN)/python -m tests.cluster stop; fi
	rm -rf .venv .pytest-pg .mypy_cache .ruff_cache .pytest_cache .hypothesis
