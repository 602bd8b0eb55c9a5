# Most targets call one script of scripts/. A target may be called again at any time; it installs and
# builds only what is missing or out of date.
#
#   TORCH_SPEC  the PyTorch that pip installs if the active environment has none
#   PYTHON      the interpreter to make .venv with (default: the newest suitable one found,
#               the active environment's first)
#   LOCKED=only  fail if the package index lacks a file of scripts/locked/, instead of saying so
#   SOAK_SECONDS  how long `make soak` takes (default: 600)
#   SCHEDULES   how many seeded schedules `make test-cuda` tries (default: 48)

TORCH_SPEC ?= torch==2.13.0
PYTHON ?=
SCHEDULES ?= 48
export TORCH_SPEC PYTHON SCHEDULES

.DEFAULT_GOAL := help
.PHONY: help build demo test test-server soak-server test-cuda docs bench bench-xl bench-larger soak lint fuzz wheel clean nasty loops compiled coverage

help:
	@echo "Targets:"
	@echo "  help   this list"
	@echo "  build  install what is missing, build, leave memscale in .venv"
	@echo "  demo   build, then train GPT-2 under a byte budget and compare with the unmodified run"
	@echo "  test   build, then run every test"
	@echo "  docs   the site in build/docs/html: guide, results, formats, references of Python and C"
	@echo "  test-cuda  the CUDA path on a double of torch's CUDA"
	@echo "  test-server  only the tests of memscale-server, if its libraries can be installed"
	@echo "  soak-server  minutes: all of its tests on SQLite and PostgreSQL, with more kills and more odd requests"
	@echo "  bench  build, then measure speed against the unmodified run and HF checkpointing"
	@echo "  bench-xl  build, then train GPT-2 XL, which does not fit in 24 GiB unmodified, under 10 GB"
	@echo "  bench-larger  build, then train models whose parameters alone exceed the budget"
	@echo "  soak   ten minutes: the offload engine, then small models, under random plans, faults and interrupts"
	@echo "  nasty  every layer and loop of tests/python/nasty under every plan, and an interrupt at every line"
	@echo "  loops  thirty training loops like those of public scripts: bits, budgets, log lines and plans"
	@echo "  compiled  twelve models compiled layer by layer, under every technique: bits, and compilations"
	@echo "  coverage  branches of C and Python that the tests take (an hour)"
	@echo "  lint   static checks of C and Python"
	@echo "  fuzz   build the libFuzzer targets with clang and run each for a minute"
	@echo "  wheel  sdist and one self-contained wheel in dist/, installed and tried out"
	@echo "  clean  remove what was built; keeps .venv"
	@echo "Variables: TORCH_SPEC ($(TORCH_SPEC)), PYTHON, SOAK_SECONDS (600), SCHEDULES ($(SCHEDULES))"

build:
	@scripts/build.sh

demo: build
	@.venv/bin/python -m memscale.benchmarks.demo

test:
	@scripts/test.sh

docs:
	@scripts/docs.sh

test-cuda:
	@scripts/test_cuda.sh

test-server:
	@scripts/test_server.sh

soak-server:
	@MEMSCALE_SERVER_DATABASES=all MEMSCALE_SERVER_KILLS=50 MEMSCALE_SERVER_EXAMPLES=100 scripts/test_server.sh

bench:
	@scripts/bench.sh

bench-xl: build
	@.venv/bin/python -m memscale.benchmarks.xl

bench-larger: build
	@.venv/bin/python -m memscale.benchmarks.larger

soak:
	@scripts/soak.sh

nasty:
	@scripts/nasty.sh

loops:
	@scripts/loops.sh

compiled:
	@scripts/compiled.sh

coverage:
	@scripts/coverage.sh

lint:
	@scripts/lint.sh

fuzz:
	@scripts/fuzz.sh

wheel:
	@scripts/wheel.sh

clean:
	@rm -rf build build-* dist .stamps/build .stamps/docs
