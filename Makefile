# Every target makes what it needs: the first call creates .venv and installs both distributions,
# adadps and adadps-experiments, in editable form.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt
# Where bytecode is switched off, each of the many processes that tests start compiles everything again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test torture check bench bench-check docs format clean

demo: $(VENV)/core
	$(BIN)/adadps demo

test: $(VENV)/dev
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2  # two workers with one thread each

torture: $(VENV)/dev $(VENV)/federated bench-check
	OMP_NUM_THREADS=1 ADADPS_KILLS=200 ADADPS_EVERY_LINE=7 $(BIN)/pytest -q tests/training/test_kills.py
	OMP_NUM_THREADS=1 ADADPS_WORLDS=10 $(BIN)/pytest -q -n 2 tests/hazards/test_two_worlds_*.py
	OMP_NUM_THREADS=1 ADADPS_COMPILED=0 $(BIN)/pytest -q -n 2 tests/contract tests/engine  # torch in place of compiled loops
	OMP_NUM_THREADS=1 ADADPS_MUTATIONS=all $(BIN)/pytest -q -n 2 tests/hazards/test_mutations.py
	OMP_NUM_THREADS=1 ADADPS_FLOWER=1 ADADPS_PROCESS_KILLS=20 $(BIN)/pytest -q tests/torture experiments/tests/bench/test_bench_processes.py
	cd tests && OMP_NUM_THREADS=1 ../$(BIN)/python -m fuzz --inputs 100000 --processes 2

check: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/bench
	$(BIN)/adadps bench

bench-check: $(VENV)/bench
	$(BIN)/adadps bench --check  # a minute or two: the promised ratios of time

docs: $(VENV)/docs
	$(BIN)/mkdocs build --strict

format: $(VENV)/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) site .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/core: pyproject.toml experiments/pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) -e . -e experiments
	touch $@

$(VENV)/dev: $(VENV)/core
	$(INSTALL) -e '.[dev]' -e 'experiments[h5]'
	touch $@

$(VENV)/federated: $(VENV)/core
	$(INSTALL) -e '.[federated]'
	touch $@

$(VENV)/bench: $(VENV)/core
	$(INSTALL) -e 'experiments[bench]'
	touch $@

$(VENV)/docs: $(VENV)/core
	$(INSTALL) -e '.[docs]'
	touch $@
