# make serve and make test do all the set-up they need, in .venv; README.md has the rest.
PYTHON ?= python3
BIN := .venv/bin
MODELS ?= models
# ONNX Runtime's builds send data to their maker unless told not to.
export ORT_DISABLE_TELEMETRY ?= 1

.PHONY: install dev models serve test e2e compose-test compat compat-record fuzz check fmt proto bench clean

.venv/.installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Nereid needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable '.[serve,examples]'
	touch $@

.venv/.installed-dev: .venv/.installed
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

install: .venv/.installed

dev: .venv/.installed-dev

models: install
	$(BIN)/python examples/make_models.py --output $(MODELS)

serve: models
	$(BIN)/nereid serve --model-repository $(MODELS) $(FLAGS)

# Two files at a time: much of a test's time is waiting for other processes.
test: dev
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(PYTEST)

e2e: dev
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder tests/e2e $(PYTEST)

# Builds the images and starts the mesh on a Docker engine, with Compose v2.
compose-test: dev
	$(BIN)/python -m pytest tests/compose $(PYTEST)

# FUZZ="--seconds 600 http2 ..." for so long each, and these targets only.
fuzz: dev
	$(BIN)/python -m pip install --quiet --editable '.[fuzz]'
	$(BIN)/python -m tests.fuzz $(FUZZ)

# The same requests to the real tritonserver and to Nereid: NEREID_TRITON_VENV has it, or it is
# installed on first use. For longer: make compat COMPAT=--hypothesis-profile=long
compat: dev
	$(BIN)/python -m pytest tests/conformance/triton -rs $(COMPAT)

# Asks the real tritonserver anew for what tests/conformance/test_nereid.py expects of Nereid.
compat-record: dev
	$(BIN)/python -m tests.conformance.triton.record

check: dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python protos/generate.py --check

fmt: dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix-only .

proto: dev
	$(BIN)/python protos/generate.py

bench: dev
	$(BIN)/python -m benchmarks $(BENCH)

clean:
	rm -rf .venv $(MODELS) .mypy_cache .pytest_cache .ruff_cache .hypothesis
