# Everything happens in a virtual environment inside the checkout; nothing but Python 3.11, make and gcc is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed-test
STAMP_DEMO := $(VENV)/.installed-demo

# Compiled test modules are kept: compiling takes a third of the inner loop.
unexport PYTHONDONTWRITEBYTECODE

# From a fresh clone mypy has one processor to itself for half a minute, so the others run beside it.
CHECKS := check-types check-lint check-format check-layers check-docker
TOGETHER := --no-print-directory --jobs 2 --output-sync=target
COMPILED := $(VENV)/.compiled-tests

.PHONY: demo test test-unit test-long check $(CHECKS) format clean

demo: $(STAMP_DEMO)
	$(BIN)/forebay demo

# A machine that stands still for a second fails a test that waits for an answer; see tests/conftest.py for which may go again.
AGAIN := --reruns 2 --reruns-delay 1 --rerun-show-tracebacks

# Only the files that have such tests: to collect all seven thousand takes longer than some of them.
TIMING := $(shell grep -rl --include 'test_*.py' 'mark\.timing' tests)

# A third worker uses what two leave of two processors while they wait for servers and disks: 100 of 870 seconds.
test: $(STAMP)
	$(MAKE) $(TOGETHER) check-types $(COMPILED) $(filter-out check-types,$(CHECKS))
	$(BIN)/python -m pytest -n 3 --dist worksteal $(AGAIN) -m "not timing"
	$(BIN)/python -m pytest $(AGAIN) -m timing $(TIMING)

test-unit: $(STAMP)
	$(BIN)/python -m pytest -n 2 -m "not slow and not nightly and not timing" tests/unit

test-long: $(STAMP)
	FOREBAY_TEST_LONG=1 $(BIN)/python -m pytest -n 2 --timeout 3600 -m "not timing"
	FOREBAY_TEST_LONG=1 $(BIN)/python -m pytest --timeout 3600 -m timing $(TIMING)

check: $(STAMP)
	$(MAKE) $(TOGETHER) $(CHECKS)

check-types: $(STAMP)
	$(BIN)/mypy

check-lint: $(STAMP)
	$(BIN)/ruff check .

check-format: $(STAMP)
	$(BIN)/ruff format --check .

check-layers: $(STAMP)
	$(BIN)/lint-imports

check-docker: $(STAMP)
	$(BIN)/hadolint docker/Dockerfile

# From a fresh clone each worker would compile every test module for itself, which takes half a minute; beside mypy it takes none. What
# does not compile fails in the tests themselves, which say why.
$(COMPILED): $(STAMP)
	-$(BIN)/python -m pytest --collect-only --quiet --quiet > $(COMPILED).log
	touch $(COMPILED)

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Not compiled: of what is installed the tests import a small part, which Python compiles when it first does.
$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable '.[test,demo,clients]'
	touch $(STAMP) $(STAMP_DEMO)

$(STAMP_DEMO): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[demo]'
	touch $(STAMP_DEMO)

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
