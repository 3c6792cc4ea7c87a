# Two commands on a fresh machine: `make demo` and `make test`. CONTRIBUTING.md lists the rest.
VENV ?= .venv
PYTHON ?= python3
WORKERS ?= 2
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: venv demo test test-slow sim check bench bench-quick bench-peers bench-sweeps chaos images e2e proto crd clean

venv: $(STAMP)

# torch first and pinned, so that no later resolve pulls a CUDA build.
$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	echo "torch==2.13.0" > $(VENV)/constraints.txt
	$(BIN)/pip install -q torch==2.13.0
	$(BIN)/pip install -q -c $(VENV)/constraints.txt -e '.[local,cluster,torch,dev]'
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/python examples/demo/run_demo.py

test: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m "not slow and not bench" tests

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m "slow and not bench" tests

# The operator in a simulated cluster, 2,000 seeds.
sim: $(STAMP)
	LANEFEED_SIM_SEEDS=2000 $(BIN)/python -m pytest -q -n $(WORKERS) tests/sim/cluster/test_cluster.py

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/gen_proto.py --check
	$(BIN)/python tools/gen_crd.py --check
	$(BIN)/python tools/check_modules.py

bench: $(STAMP)
	$(BIN)/python bench/run.py

bench-quick: $(STAMP)
	$(BIN)/python bench/run.py --quick --guard

bench-peers: $(STAMP)
	$(BIN)/python bench/install_peers.py

bench-sweeps: $(STAMP)
	$(BIN)/python -m bench.sweeps

chaos: $(STAMP)
	LANEFEED_CHAOS_KILLS=300 $(BIN)/python -m pytest -s --timeout 7200 tests/chaos

# Three image archives in .images/, built by buildah from BASE (any image with Python 3.11 and pip).
BASE ?= python:3.11-slim
images: $(STAMP)
	BASE=$(BASE) PYTHON=$(BIN)/python images/build

# On a real cluster of this machine: needs root and ../shared/kube (tests/e2e/README.md).
e2e: $(STAMP)
	LANEFEED_E2E=1 $(BIN)/python -m pytest -p no:cacheprovider -p no:xdist --durations=0 --durations-min=1 tests/e2e

proto: $(STAMP)
	$(BIN)/python tools/gen_proto.py

crd: $(STAMP)
	$(BIN)/python tools/gen_crd.py

clean:
	rm -rf $(VENV) .demo .mypy_cache .ruff_cache .pytest_cache .hypothesis
