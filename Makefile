# The two commands: `make demo` and `make test`. Both set everything up in .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 2

.PHONY: demo test test-zoo stress lint coverage figures docs setup clean

demo: setup
	$(BIN)/hope demo

test: setup
	$(BIN)/python -m pytest -n $(WORKERS) --durations=30

test-zoo: setup
	$(BIN)/python -m pytest -n $(WORKERS) -m zoo --durations=30

stress: setup
	HOPE_STRESS=10000 $(BIN)/python -m pytest -n $(WORKERS) tests/storage/test_fuzz.py tests/test_odd_networks.py
	$(BIN)/python -m experiments.stress
	$(BIN)/python -m experiments.stress --write-pages

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

coverage: setup
	$(BIN)/python -m experiments.coverage
	$(BIN)/python -m experiments.coverage --write-pages

figures: setup
	$(BIN)/python -m experiments.draw
	$(BIN)/python -m experiments.compression --write-pages
	$(BIN)/python -m experiments.bits --write-pages
	$(BIN)/python -m experiments.bits_text --write-pages
	$(BIN)/python -m experiments.readings --write-pages
	$(BIN)/python -m experiments.refit --write-pages
	$(BIN)/python -m experiments.dreams --write-pages
	$(BIN)/python -m experiments.depthwise --write-pages
	$(BIN)/python -m experiments.streams --write-pages
	$(BIN)/python -m experiments.normed --write-pages
	$(BIN)/python -m experiments.milliseconds --write-pages
	$(BIN)/python -m experiments.vit --write-pages
	$(BIN)/python -m experiments.gguf --write-pages
	$(BIN)/python -m experiments.scale --write-pages
	$(BIN)/python -m experiments.rules --write-pages
	$(BIN)/python -m experiments.study --write-pages
	$(BIN)/python -m experiments.calibration --write-pages
	$(BIN)/python -m experiments.speed --write-pages
	$(BIN)/python -m experiments.finetune --write-pages
	$(BIN)/python -m experiments.heal --write-pages
	$(BIN)/python -m experiments.language --write-pages
	$(BIN)/python -m experiments.latency --write-pages
	$(BIN)/python -m experiments.transfer --write-pages
	$(BIN)/python -m experiments.screenshots

docs: setup
	$(BIN)/python docs/reference.py
	$(BIN)/python docs/draw_architecture.py
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-build-isolation -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

setup: $(VENV)/.done

# torch first, alone and exact: asked for by range it would bring gigabytes of CUDA along
$(VENV)/.done: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip setuptools wheel -c constraints.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-build-isolation -e '.[dev,demo,images,report,browser,torchvision,timm,transformers,onnx,gguf,peers]'
	$(BIN)/python -c 'import torchvision, transformers' 2>/dev/null || \
	  $(BIN)/python -c 'from hope._util import operators; operators.declare_missing_operators(); import torchvision, transformers; print("note: a plain `import torchvision` fails here:", operators.NOTE)'
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis site
