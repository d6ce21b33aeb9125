# Everything happens in a virtual environment inside the checkout; nothing but Python 3.11, make and gcc is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed-test
STAMP_DEMO := $(VENV)/.installed-demo

# Compiled test modules are kept: compiling takes a third of the inner loop.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-unit test-long check format clean

demo: $(STAMP_DEMO)
	$(BIN)/forebay demo

# A machine that stands still for a second fails a test that waits for an answer; see tests/conftest.py for which may go again.
AGAIN := --reruns 2 --reruns-delay 1 --rerun-show-tracebacks

test: check
	$(BIN)/python -m pytest -n 2 --dist worksteal $(AGAIN) -m "not timing"
	$(BIN)/python -m pytest $(AGAIN) -m timing

test-unit: $(STAMP)
	$(BIN)/python -m pytest -n 2 -m "not slow and not nightly and not timing" tests/unit

test-long: $(STAMP)
	FOREBAY_TEST_LONG=1 $(BIN)/python -m pytest -n 2 --timeout 3600 -m "not timing"
	FOREBAY_TEST_LONG=1 $(BIN)/python -m pytest --timeout 3600 -m timing

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/hadolint docker/Dockerfile

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test,demo,clients]'
	touch $(STAMP) $(STAMP_DEMO)

$(STAMP_DEMO): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[demo]'
	touch $(STAMP_DEMO)

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
