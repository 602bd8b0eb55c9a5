# The front door. Every target calls a script of scripts/ and nothing else; each
# may be called again at any time and does only what is missing or out of date.
#
#   TORCH_SPEC  what pip installs as PyTorch where the active environment has none
#   PYTHON      the interpreter to make .venv with (default: the newest suitable one found,
#               the active environment's first)
#   SOAK_SECONDS  how long `make soak` takes (default: 600)
#   SCHEDULES   how many seeded schedules `make test-cuda` tries (default: 48)

TORCH_SPEC ?= torch==2.13.0
PYTHON ?=
SCHEDULES ?= 48
export TORCH_SPEC PYTHON SCHEDULES

.DEFAULT_GOAL := help
.PHONY: help build demo test test-server test-cuda docs bench bench-xl soak lint fuzz wheel clean nasty loops

help:
	@echo "Targets:"
	@echo "  help   this list"
	@echo "  build  install what is missing, build, leave memscale in .venv"
	@echo "  demo   build, then train GPT-2 under a byte budget beside the unmodified run"
	@echo "  test   build, then pass every test"
	@echo "  docs   the site in build/docs/html: guide, results, formats, references of Python and C"
	@echo "  test-cuda  the CUDA path on a double of torch's CUDA"
	@echo "  test-server  the tests of memscale-server alone, where its libraries can be had"
	@echo "  bench  build, then measure against the unmodified run and HF checkpointing"
	@echo "  bench-xl  build, then train GPT-2 XL, which does not fit in 24 GiB unmodified, under 10 GB"
	@echo "  soak   ten minutes of the offload engine under random schedules, threads and faults"
	@echo "  nasty  every layer and loop of tests/python/nasty under every plan, and an interrupt at every line"
	@echo "  loops  thirty loops of the kinds that public scripts have: bits, budgets, words and plans"
	@echo "  lint   static checks of C and Python"
	@echo "  fuzz   build the libFuzzer targets with clang and run each for a minute"
	@echo "  wheel  one self-contained wheel in dist/, installed and tried out"
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

bench:
	@scripts/bench.sh

bench-xl: build
	@.venv/bin/python -m memscale.benchmarks.xl

soak:
	@scripts/soak.sh

nasty:
	@scripts/nasty.sh

loops:
	@scripts/loops.sh

lint:
	@scripts/lint.sh

fuzz:
	@scripts/fuzz.sh

wheel:
	@scripts/wheel.sh

clean:
	@rm -rf build build-* dist .stamps/build .stamps/docs
