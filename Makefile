# Targets set up a virtual environment in $(VENV) first. ARGS are passed to train.py.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
INSTALLED = $(VENV)/.installed

.PHONY: train test test-all lint format benchmarks clean

train: $(INSTALLED)
	$(BIN)/python train.py $(ARGS)

# A file of tests stays with one worker, since its tests share small runs.
test: $(INSTALLED)
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

test-all: $(INSTALLED)
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder -m "slow or not slow"

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Takes an hour on two idle cores.
benchmarks: $(INSTALLED)
	$(BIN)/python benchmarks/training.py --plot docs/images/training.png
	$(BIN)/python benchmarks/generation.py
	$(BIN)/python benchmarks/scaling.py --plot docs/images/scaling.png

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed; set PYTHON=") if sys.version_info < (3, 11) else 0'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	if command -v npm > /dev/null; then $(BIN)/scratch export runtime || echo "exported pages will not be tested"; fi
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache
