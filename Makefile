PYTHON ?= python3
VENV := .venv
CONSTRAINTS := constraints.txt
BIN := $(VENV)/bin
# uv installs sooner than pip. It reads none of pip's settings, so those that say where packages are go along; of
# index-url only the first, which is the environment's if that has one.
given = $(shell $(PYTHON) -m pip config list | sed -n "s/.*\.$(1)='\(.*\)'/\1/p" | sed 's/\\n/ /g')
setting = $(patsubst %,--$(1)=%,$(call given,$(1)))
SOURCES = $(firstword $(call setting,index-url)) $(call setting,extra-index-url) $(call setting,find-links)
INSTALL = $(BIN)/uv pip install --quiet --python $(BIN)/python --index-strategy unsafe-best-match $(SOURCES) \
	--constraint $(CONSTRAINTS) --reinstall-package gradwire
PACKAGE := pyproject.toml $(CONSTRAINTS) $(wildcard native/*)
TORCH := $(VENV)/.torch
LAB := $(VENV)/.lab
DEV := $(VENV)/.dev

WORKERS := $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 2)))

.PHONY: demo test test-all test-torch test-deepspeed test-megatron test-ray test-torchft test-titan lint docs benchmarks sanitize fuzz dist wheels extras clean

demo: $(LAB)  ## the main job: a language model over slow links, dense against compressed
	$(BIN)/gradwire demo

PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test: $(DEV)  ## all tests but the long ones, with two workers more than cores, because many tests wait
	$(PYTEST) -m 'not long'

test-all: $(DEV)  ## and the long ones: every row of every table, trainings in small
	$(PYTEST)

test-torch:  ## all tests but the long ones with another torch: make test-torch VERSION=2.15.0
	mkdir -p build
	sed 's/^torch==.*/torch==$(VERSION)/; /^triton==/d' constraints.txt > build/torch-$(VERSION).txt
	$(MAKE) test VENV=build/torch-$(VERSION) CONSTRAINTS=build/torch-$(VERSION).txt

test-deepspeed: $(DEV)  ## the tests that need DeepSpeed, which builds one of its kernels for CPUs
	$(INSTALL) --editable '.[deepspeed]'
	$(BIN)/python -m pytest -q tests/integrations/test_deepspeed.py tests/docs/test_examples.py -k deepspeed

test-megatron: $(DEV)  ## the tests that need Megatron-core
	$(INSTALL) --editable '.[megatron]'
	$(BIN)/python -m pytest -q tests/integrations/test_megatron.py tests/docs/test_examples.py -k megatron

test-ray: $(DEV)  ## the tests that need Ray, which takes 500 MB more
	$(INSTALL) --editable '.[ray]'
	$(BIN)/python -m pytest -q tests/integrations/test_ray.py

test-torchft: $(DEV)  ## the tests that need torchft
	$(INSTALL) --editable '.[torchft]'
	$(BIN)/python -m pytest -q tests/integrations/test_torchft.py tests/processes/test_torchft.py

test-titan: $(DEV)  ## the example for torchtitan, whose packages take 400 MB more
	$(BIN)/python -m pip install --quiet torchtitan==0.3.0  # whose datasets want an older fsspec than constraints.txt
	$(BIN)/python -m pytest -q tests/docs/test_examples.py -k titan

lint: $(DEV)  ## what CI checks besides the tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

docs: $(DEV)  ## the site, into build/site, and its tests; it needs no network
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	SITE=build/site $(BIN)/python -m pytest -q tests/docs/test_site.py
	@echo "read it: build/site/index.html"

benchmarks: $(DEV)  ## docs/benchmarks/ from benchmarks/results/; it measures nothing
	$(BIN)/python benchmarks/pages/document.py

sanitize: $(DEV)  ## the tests of kernels and of processes under AddressSanitizer and UBSan
	PYTHON=$(BIN)/python native/check/sanitize.sh

fuzz: $(DEV)  ## ten minutes for each reader; the native decoders need Clang, the others Python 3.11 to 3.13
	native/check/fuzz/fuzz.sh
	$(INSTALL) atheris
	printf '%s\n' plan state entries blocks | xargs -n 1 -P 2 $(BIN)/python -m tests.support.fuzz

dist:  ## the files of a release, into build/dist: source and wheels; it needs Debian's g++-aarch64-linux-gnu
	.ci/release

wheels: dist  ## tries each of them in an empty environment, and the library for aarch64 under qemu-user
	native/check/wheels.sh

extras:  ## the package, and it with each extra, each in an empty environment
	.ci/extras

$(TORCH): $(CONSTRAINTS)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) uv
	$(INSTALL) torch
	touch $(TORCH)

$(LAB): $(TORCH) $(PACKAGE)
	$(INSTALL) --editable '.[lab]'
	touch $(LAB)

$(DEV): $(TORCH) $(PACKAGE)  # which has all of [lab]
	$(INSTALL) --compile-bytecode --editable '.[dev]'  # or each of the first processes would compile all
	touch $(LAB) $(DEV)

clean:
	rm -rf $(VENV) runs
