PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test lint sanitize fuzz wheels clean

demo: $(STAMP)  ## the main job: a language model over slow links, dense against compressed
	$(BIN)/gradwire demo

test: $(STAMP)  ## every test
	$(BIN)/python -m pytest -q

lint: $(STAMP)  ## what CI checks besides the tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

sanitize: $(STAMP)  ## the kernels' tests under AddressSanitizer and UBSan
	PYTHON=$(BIN)/python native/check/sanitize.sh

fuzz:  ## ten minutes for each decoder; needs Clang
	native/check/fuzz/fuzz.sh

wheels:  ## builds both wheels and tries each in an empty environment
	native/check/wheels.sh

$(STAMP): pyproject.toml constraints.txt $(wildcard native/*)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

clean:
	rm -rf $(VENV) runs
