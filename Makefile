# The ways in. Each target installs what it needs first (tools/setup, idempotent) and can be called in
# any order from a clean clone. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON := .venv/bin/python
GPU_PYTHON := .venv-frameworks/bin/python
JOBS := $(shell nproc)
# Tests wait more than they compute.
TEST_JOBS := $(shell expr $(JOBS) + 1)
TELLTALE := build/release/bin/telltale
# Compilers' output is worth showing only where something fails.
QUIET := tools/quiet
# Under .ci/run each is timed.
PHASE := tools/phase

.PHONY: mutants help setup page build demo planted verdicts test test-frameworks test-gpu bench overhead level-cost window-cost check asan tsan fuzz fault clean-clone nightly clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

setup: ## install what building, testing and the demo need
	@tools/setup test

page: ## web/dist, the page that the server carries inside
	@tools/setup build
	@$(QUIET) build/page.log npm --prefix web run --silent build

build: ## build/release/bin/telltale and what it loads at run time
	@$(MAKE) page
	@$(QUIET) build/release.log cmake --preset release
	@$(QUIET) build/release.log cmake --build build/release --target telltale_runtime

demo: ## train a slow and a healthy network under telltale and show the verdicts
	@tools/setup demo
	@$(MAKE) build
	@$(PYTHON) examples/demo/run.py

planted: ## trainings with one planted defect each, and cured: the table of what fired and what was silent
	@tools/setup test
	@$(MAKE) build
	@$(PYTHON) tests/e2e/planted_table.py --telltale $(TELLTALE)

verdicts: ## programs with a known right verdict: input, expected, said, cause right, and the figures (tests/verdicts; 8 GB, slow)
	@tools/setup verdicts
	@$(MAKE) build
	@$(PYTHON) tests/verdicts/run.py --telltale $(TELLTALE) $(VERDICTS_ARGS)

test: ## build everything and run the tests (the slow ones: make fault)
	@$(PHASE) setup tools/setup test
	@$(PHASE) page $(MAKE) page
	@$(PHASE) configure $(QUIET) build/release.log cmake --preset release
	@$(PHASE) build $(QUIET) build/release.log cmake --build build/release
	@$(PHASE) tests ctest --preset release -j $(TEST_JOBS) -LE slow --output-junit $(CURDIR)/build/release/tests.xml

test-frameworks: ## the adapters on today's torch, Keras, TensorFlow, JAX, XGBoost, Lightning, Transformers; 8 GB
	@tools/setup frameworks
	@$(MAKE) build
	@# A process each: TensorFlow and Triton have an LLVM each, and a process with both aborts.
	@failed=(); for file in tests/frameworks/test_*.py; do \
	  .venv-frameworks/bin/python -m pytest "$$file" || { [ $$? -ne 2 ] || exit 2; failed+=("$$file"); }; done; \
	  if [ "$${#failed[@]}" -gt 0 ]; then echo "failed: $${failed[*]}" >&2; exit 1; fi

test-gpu: ## what is captured on a CUDA device, with GPU_PYTHON's torch and jax (those of test-frameworks); without one JAX's rows alone, on the CPU
	@[ "$(GPU_PYTHON)" != .venv-frameworks/bin/python ] || tools/setup frameworks
	@$(MAKE) build
	@TELLTALE_TEST_CUDA=1 XLA_PYTHON_CLIENT_PREALLOCATE=false $(GPU_PYTHON) -m pytest -q tests/gpu tests/frameworks/test_jax.py

mutants: ## comparisons and severities of the rules changed, one at a time: do the rule scripts see it
	@tools/setup test
	@$(QUIET) build/release.log cmake --preset release
	@tools/mutants $(MUTANTS_ARGS)

fault: ## the tests of tests/fault, the slow ones too: each kind of kill 20 times, 1,000 kills within a stop; the page over eight hours
	@tools/setup test
	@$(MAKE) page
	@$(QUIET) build/release.log cmake --preset release
	@$(QUIET) build/release.log cmake --build build/release
	@failed=0; ctest --preset release -L '^fault$$' || failed=1; ctest --preset release -R web/test_soak || failed=1; exit $$failed

asan: ## the C++ tests, the Python binding's and those of forged runs, under the address and undefined-behaviour sanitizers
	@tools/setup test
	@$(MAKE) page
	@$(QUIET) build/asan.log cmake --preset asan
	@$(QUIET) build/asan.log cmake --build build/asan
	@ctest --preset asan -j $(JOBS) -LE slow

tsan: ## the C++ tests under the thread sanitizer
	@tools/setup test
	@$(MAKE) page
	@$(QUIET) build/tsan.log cmake --preset tsan
	@$(QUIET) build/tsan.log cmake --build build/tsan
	@ctest --preset tsan -j $(JOBS) -LE slow

fuzz: ## each parser under libFuzzer and the sanitizers (clang), FUZZ_SECONDS (60) each
	@tools/setup fuzz
	@$(MAKE) page
	@$(QUIET) build/fuzz.log cmake --preset fuzz
	@$(QUIET) build/fuzz.log cmake --build --preset fuzz
	@tools/fuzz $(FUZZ_SECONDS) $(FUZZ_TARGETS) $(FUZZ_ARGS)

bench: ## each benchmark with its peer in the same run
	@tools/setup test
	@$(MAKE) page
	@$(QUIET) build/release.log cmake --preset release
	@$(QUIET) build/release.log cmake --build build/release
	@$(PYTHON) bench/run.py

overhead: ## what telltale costs a training; wants a quiet machine
	@tools/setup test
	@$(MAKE) build
	@$(PYTHON) bench/overhead.py $(OVERHEAD_ARGS)

level-cost: ## what each named capture level costs; wants a quiet machine
	@tools/setup test
	@$(MAKE) build
	@$(PYTHON) bench/level_cost.py $(LEVEL_ARGS)

loader-advice: ## whether advice about loaders helps: planted loaders before and after it, by turns; wants a quiet machine
	@tools/setup test
	@$(MAKE) build
	@$(PYTHON) bench/loader_advice.py $(LOADER_ARGS)

window-cost: ## what a window of detail does to the steps outside of it, with torch 2 (8 GB); wants a quiet machine
	@tools/setup frameworks
	@$(MAKE) build
	@.venv-frameworks/bin/python bench/window_cost.py $(WINDOW_ARGS)

check: ## format, clang-tidy, layers, ruff, mypy, tsc
	@tools/setup test
	@tools/check

clean-clone: ## demo and tests in a fresh clone of HEAD; the demo within 15 minutes
	@tools/clean_clone $(CLEAN_CLONE_ARGS)

nightly: ## what is too slow for .ci/run, PART=name: at most 100 minutes, a row of docs/nightly.md; alone: the parts
	@tools/nightly $(PART)

clean: ## remove what the targets above made, the virtual environment too
	rm -rf build web/dist web/node_modules web/src/records.gen.ts .venv .venv-frameworks .venv-verdicts .venv-hta .venv-smdebug demo-out
