# `make run` and `make test` do all the set-up on a fresh machine; install.py says what it downloads.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
TOOLS := $(VENV)/.tools
# what every result rests on: methods, federation, contract, random draws, and that both engines agree
CORE := tests/methods tests/federation tests/test_contract.py tests/test_contract_rules.py tests/test_rng.py \
	tests/engine/test_engine.py::test_engines_agree_for_every_method_and_model

.PHONY: setup run test test-core test-all lint format docs clean

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) install.py $(VENV)
	@touch $@

# the package with the tools to develop it
setup: $(TOOLS)

$(TOOLS): pyproject.toml constraints.txt
	$(PYTHON) install.py $(VENV) --dev
	@touch $(INSTALLED) $@

run: $(INSTALLED)
	$(BIN)/fedskip run
	@echo
	@echo "Go on with:"
	@echo "  $(BIN)/fedskip list                             what can be run"
	@echo "  $(BIN)/fedskip show quickstart > mine.yaml      a study to change: $(BIN)/fedskip run mine.yaml"
	@echo "After 'source $(BIN)/activate' it is 'fedskip' alone. README.md has more."

# what CI runs; two workers because most of the time goes into many small tests
test: setup
	$(BIN)/python -m pytest -n 2 --dist loadfile

# seconds, to run after every change
test-core: setup
	$(BIN)/python -m pytest $(CORE) -x -k "not resnet50 and not femnist and not head and not lstm"

# also what needs a browser (Debian: chromium), parquet files, kernels for a GPU on the CPU, and more time; then how
# much of the code all tests pass through, and whether they notice small changes to it
test-all: setup
	$(BIN)/python -m pip install --quiet playwright pyarrow
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n 2 --dist loadfile -m "slow or not slow"
	$(BIN)/python -m pip install --quiet --target build/triton --no-deps triton
	TRITON_INTERPRET=1 PYTHONPATH=build/triton $(BIN)/python -m pytest tests/kernels/test_convolution.py
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report
	$(BIN)/python benchmarks/mutations.py --sample 12
	$(BIN)/mkdocs build --strict --quiet

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# the site, also offline; the address is that of this machine
docs: setup
	$(BIN)/mkdocs build --strict --quiet
	@echo "$(BIN)/python -m http.server --directory build/site 8000    shows it at http://localhost:8000"

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis src/*.egg-info
