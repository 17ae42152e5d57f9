# Targets set up a virtual environment in $(VENV) first. ARGS are passed to train.py.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
INSTALLED = $(VENV)/.installed
# A worker for each processor: one more would wait less for processes, but import everything and make the shared models
# and runs once more. The tests of a file share small runs, so they stay with one worker.
WORKERS = $$($(BIN)/python -c 'import os; print(min(os.cpu_count(), 16))')
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: train test test-all test-portable test-gpu lint format docs benchmarks clean

train: $(INSTALLED)
	$(BIN)/python train.py $(ARGS)

test: $(INSTALLED)
	$(PYTEST)

test-all: $(INSTALLED)
	$(PYTEST) -m "slow or not slow"

# What computes, as older processors and more threads round it: PyTorch's plainest kernels; no AVX-512; SSE alone. And
# beside a thread of each test process that keeps a core busy (tests/conftest.py).
COMPUTES = tests/model tests/training tests/inference tests/recipe tests/test_metrics.py tests/apps/convert \
	tests/apps/figures tests/apps/documents tests/apps/translate tests/commands/test_ensemble_commands.py
SETTINGS = "ATEN_CPU_CAPABILITY=default MKL_CBWR=COMPATIBLE" \
	"ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2" \
	"ONEDNN_MAX_CPU_ISA=SSE41 OMP_NUM_THREADS=1" "OMP_NUM_THREADS=4 OMP_WAIT_POLICY=passive" "TEST_BESIDE_BUSY_THREAD=1"

test-portable: $(INSTALLED)
	set -e; for setting in $(SETTINGS); do echo "$$setting"; env $$setting $(PYTEST) $(COMPUTES); done

# On a machine with a GPU.
test-gpu: $(INSTALLED)
	TEST_ON_GPU=1 $(BIN)/python -m pytest -n 4 tests/gpu

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# A site in build/site; a warning, such as a broken link, is an error.
docs: $(INSTALLED)
	$(BIN)/python docs/stage.py build/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Takes an hour on two idle cores.
benchmarks: $(INSTALLED)
	$(BIN)/python benchmarks/training.py --plot docs/images/training.png
	$(BIN)/python benchmarks/generation.py
	$(BIN)/python benchmarks/scaling.py --plot docs/images/scaling.png

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11.5 or newer is needed; set PYTHON=") if sys.version_info < (3, 11, 5) else 0'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	if command -v npm > /dev/null; then $(BIN)/scratch export runtime || echo "exported pages will not be tested"; fi
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache .mypy_cache
