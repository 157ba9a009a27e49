# `make serve` and `make test` install all they need in .venv. CONTRIBUTING.md explains the rest.
PYTHON ?= python3
BIN := .venv/bin
MODELS ?= models
PYTEST := $(BIN)/python -m pytest
# Two files at a time: much of a test's time is spent waiting for other processes.
PARALLEL := -n 2 --dist loadfile --no-loadscope-reorder
# ONNX Runtime's builds send data to their maker unless told not to.
export ORT_DISABLE_TELEMETRY ?= 1
# Bytecode is kept, whatever the environment says: without it each process of a mesh compiles all that it imports.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help install dev models serve unit coverage test tests-on e2e text-clients test-compiled test-sandboxed wheel nightly compose-test compat compat-record fuzz check \
	fmt proto docs site pictures lock chart package-test bench bench-all bench-page soak torment simulate sbom audit pin-images release-dry-run reproduce clean

help:  ## List the targets.
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.venv/.installed: pyproject.toml requirements/serve.txt requirements/build.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Nereid needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes --requirement requirements/build.txt
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes --requirement requirements/serve.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

.venv/.installed-dev: .venv/.installed requirements/dev.txt
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes --requirement requirements/dev.txt
	touch $@

install: .venv/.installed  ## Make .venv with what serving needs.

dev: .venv/.installed-dev  ## Make .venv with what the tests need as well.

models: install  ## Make the example models.
	$(BIN)/python examples/make_models.py --output $(MODELS)

serve: models  ## Serve the example models, compiled as soon as that is built (FLAGS="..." for flags of nereid serve).
	PYTHONPATH="$$($(BIN)/python scripts/serving_form.py)" exec $(BIN)/nereid serve --model-repository $(MODELS) $(FLAGS)

unit: dev  ## Seconds: unit tests, no sockets, no other processes.
	$(PYTEST) $(PARALLEL) tests/unit $(ARGS)

coverage: dev  ## Branch coverage of the folders that are marked as covered; fails below the recorded floor.
	$(BIN)/python scripts/branch_coverage.py $(ARGS)

test: dev  ## Minutes: all that CI runs. ARGS="-k name" or a path narrows it.
	$(PYTEST) $(PARALLEL) $(ARGS)

# In environments of their own, as they bring much along.
build/%/.installed: requirements/%.txt
	$(PYTHON) -m venv --clear build/$*
	build/$*/bin/python -m pip install --quiet --no-deps --require-hashes --requirement requirements/$*.txt
	touch $@

text-clients: dev build/text-clients/.installed build/aiperf/.installed  ## LangChain's, LlamaIndex's, LiteLLM's and Haystack's clients of OpenAI's API, and AIPerf, against a mesh.
	NEREID_TEXT_CLIENTS=$(CURDIR)/build/text-clients/bin/python NEREID_AIPERF=$(CURDIR)/build/aiperf/bin/aiperf $(PYTEST) \
		tests/e2e/texts/test_client_suites.py tests/e2e/texts/test_aiperf.py $(ARGS)

e2e: dev  ## The tests of whole meshes alone.
	$(PYTEST) $(PARALLEL) tests/e2e tests/conformance $(ARGS)

# A copy of the tree in which modules of marked folders are compiled; Python imports them from there.
COMPILED := build/compiled
.PHONY: $(COMPILED)
$(COMPILED): dev
	$(BIN)/python scripts/compiled_tree.py $(COMPILED)

test-compiled: $(COMPILED)  ## The tests on the compiled form (docs/decisions/layout.md). ARGS="tests/e2e" for some.
	cd $(COMPILED) && PYTHONPATH=$$($(CURDIR)/$(BIN)/python $(CURDIR)/benchmarks/source_tree.py) NEREID_TEST_FORM=compiled $(CURDIR)/$(BIN)/python -m pytest $(PARALLEL) $(ARGS)

test-sandboxed: dev  ## The tests of Python models with --sandbox-models.
	NEREID_SANDBOX_MODELS=true NEREID_SANDBOX_ALLOW=model-control $(PYTEST) $(PARALLEL) tests/e2e/python $(ARGS)

nightly: dev compat  ## Hours: everything, full tables, endurance, fuzzing, the real Triton beside Nereid.
	$(PYTEST) $(PARALLEL) -m "nightly or not nightly" $(ARGS)
	$(MAKE) test-sandboxed
	$(MAKE) test-compiled
	NEREID_ADOPT_RESPONSES=1000000 $(PYTEST) tests/conformance/triton/test_adopt.py -rs
	$(PYTEST) --hypothesis-profile=searching tests/unit $(ARGS)
	$(MAKE) fuzz FUZZ="--seconds 600"
	$(MAKE) chart ARGS='-m "nightly or not nightly"'
	$(MAKE) torment TORMENT="--minutes 120"
	$(BIN)/python -m tests.differential --minutes 60 --seed $$(date +%s)
	$(BIN)/python -m tests.protocols --seconds 120 --seed $$(date +%s)
	printf '%s\n' 1 5001 | xargs -P 2 -I {} $(BIN)/python -m tests.simulation --seed {} --seeds 5000 --minutes 0.3
	$(MAKE) sbom audit
	$(MAKE) reproduce COMPARE="--compiled $$(docker info >/dev/null 2>&1 && echo --images)"

chart: dev  ## Render the Helm chart and test what it makes (350 MB of packages).
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes --requirement requirements/chart.txt
	$(PYTEST) $(PARALLEL) tests/deploy $(ARGS)

compose-test: dev  ## Build the images, start the mesh on a Docker engine, and test it.
	@docker compose version >/dev/null 2>&1 || { echo "make compose-test needs a Docker engine with Compose v2 (docker compose)"; exit 2; }
	$(PYTEST) tests/compose $(ARGS)

# Old code with today's tests: a fault that was mended fails there (docs/track-record.md). Commits before the packages of
# services had import names of their own need the tests of the last such one: TESTS=caa06b08.
THEN := build/then
TESTS ?= HEAD
tests-on: dev  ## Today's tests on the code of another commit. AT=27c58b7d TESTS=caa06b08 ARGS=tests/e2e/models/test_public_reports.py
	rm -rf $(THEN) && git worktree prune && git worktree add --quiet --detach $(THEN) $(AT)
	git -C $(THEN) checkout --quiet $$(git rev-parse $(TESTS)) -- tests
	cd $(THEN) && PYTHONPATH=$$($(CURDIR)/$(BIN)/python $(CURDIR)/benchmarks/source_tree.py) $(CURDIR)/$(BIN)/python -m pytest $(PARALLEL) $(ARGS)

fuzz: dev  ## Fuzz the parsers, for crashes and by cost. FUZZ="--seconds 600 http2 ..." for so long each, and these targets only.
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes --requirement requirements/fuzz.txt
	$(BIN)/python -m tests.fuzz $(FUZZ)

# NEREID_TRITON_VENV names a virtual environment that has nvidia-pytriton; without it one is made on first use.
# NEREID_TRITON_ONNX_BACKEND names a directory with Triton's backend for ONNX, which the wheel lacks.
compat: dev  ## The same requests to the real tritonserver and to Nereid. COMPAT=--hypothesis-profile=long for longer.
	$(PYTEST) tests/conformance/triton -rs $(COMPAT)

compat-record: dev  ## Ask the real tritonserver anew for what tests/conformance expects.
	$(BIN)/python -m tests.conformance.triton.record

check: dev  ## Format, lint, types, import rules, words, generated files and plots.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy deploy protos scripts
	$(BIN)/lint-imports
	$(BIN)/python scripts/check_words.py
	$(BIN)/python protos/generate.py --check
	$(BIN)/python scripts/flag_reference.py --check
	$(BIN)/python scripts/metric_reference.py --check
	$(BIN)/python scripts/recovery_reference.py --check
	$(BIN)/python scripts/route_reference.py --check
	$(BIN)/python scripts/triton_reference.py --check
	$(BIN)/python scripts/values_reference.py --check
	$(BIN)/python scripts/vulnerability_reference.py --check
	$(BIN)/python -m benchmarks.page --check

fmt: dev  ## Format the code and fix what ruff can fix.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix-only .

proto: dev  ## Generate nereid/pb from protos/.
	$(BIN)/python protos/generate.py

docs: dev  ## Generate docs/reference from the code that declares flags, metrics and times; the chart's table of values.
	$(BIN)/python scripts/flag_reference.py
	$(BIN)/python scripts/metric_reference.py
	$(BIN)/python scripts/recovery_reference.py
	$(BIN)/python scripts/route_reference.py
	$(BIN)/python scripts/triton_reference.py
	$(BIN)/python scripts/values_reference.py
	$(BIN)/python scripts/vulnerability_reference.py

# In an environment of its own: no test needs it.
SITE := build/site-env
$(SITE)/.installed: requirements/docs.txt
	$(PYTHON) -m venv --clear $(SITE)
	$(SITE)/bin/python -m pip install --quiet --no-deps --require-hashes --requirement requirements/docs.txt
	touch $@

site: $(SITE)/.installed  ## Build the documentation's site in build/site; fails on a dead link.
	$(SITE)/bin/python scripts/build_site.py

pictures: models dev  ## Minutes: the pictures of README and site anew, from a mesh under load (needs chromium).
	$(BIN)/python -m scripts.pictures --models $(MODELS)

lock: dev  ## Lock all dependencies, with hashes, in requirements/. LOCK=--upgrade for the newest.
	$(BIN)/python scripts/lock.py $(LOCK)

# In an environment of their own: what looks at dependencies is none of them.
SUPPLY := build/supply
$(SUPPLY)/.installed: requirements/supply.txt
	$(PYTHON) -m venv --clear $(SUPPLY)
	$(SUPPLY)/bin/python -m pip install --quiet --no-deps --require-hashes --requirement requirements/supply.txt
	touch $@

sbom: $(SUPPLY)/.installed  ## Write what each image is made of to build/sbom (CycloneDX).
	$(SUPPLY)/bin/python scripts/sbom.py

audit: $(SUPPLY)/.installed  ## Look for known vulnerabilities in what is locked. AUDIT="--service osv" asks OSV.
	$(SUPPLY)/bin/python scripts/audit.py $(AUDIT)

pin-images:  ## Write the digests of the base images into deploy/Dockerfile and docker-compose.yml.
	$(PYTHON) scripts/pin_images.py

# .github/workflows/release.yml does the rest. Without helm, or what `make chart` installs, there is no chart.
release-dry-run: dev  ## Check that all says one version, and build sdist, pure wheel and chart of HEAD. TAG=v1.2.3 checks the tag.
	$(BIN)/python scripts/release.py check $(if $(TAG),--tag $(TAG))
	$(BIN)/python scripts/release.py build

reproduce: dev  ## Build sdist, wheels and chart of HEAD twice, and fail where a file has two digests. COMPARE="--compiled --images" adds the compiled wheel and a Docker engine's images (minutes).
	$(BIN)/python scripts/release.py compare $(COMPARE)

# Each from the sdist, which has nothing that an earlier build left.
wheel: dev  ## Build dist/: the sdist, the pure wheel, and the compiled one for this platform (needs gcc).
	NEREID_COMPILE=0 $(BIN)/python -m build --no-isolation --outdir dist .
	NEREID_COMPILE=1 $(BIN)/python -m build --no-isolation --outdir dist .

package-test: dev  ## Build sdist and wheels, install each in an empty environment, and serve a request.
	$(BIN)/python scripts/package_test.py

# Figures stay here for bench-page.
FIGURES ?= build/figures.json

bench: $(COMPILED)  ## 13 minutes: throughput, latency and CPU beside other servers; benchmarks/README.md. BENCH="--only nereid" for less.
	@mkdir -p $(dir $(FIGURES))
	$(BIN)/python -m benchmarks --json $(FIGURES) --nereid-tree compiled=$(COMPILED) $(BENCH)

bench-all: dev  ## 45 minutes: the same with every model.
	@mkdir -p $(dir $(FIGURES))
	$(BIN)/python -m benchmarks --model all --json $(FIGURES) $(BENCH)

bench-page: dev  ## Write docs/benchmarks.md, its tables, all plots and the README's figure from what was recorded.
	$(BIN)/python -m benchmarks.page $(wildcard $(FIGURES))

soak: dev  ## Hours: a mixed load with connection churn, and the memory of each process. SOAK="--requests 100000" for less.
	$(BIN)/python -m benchmarks.soak $(SOAK)

torment: dev  ## Minutes: a mesh under seeded faults, and a check of every response. TORMENT="--seed 7 --faults kill" for others.
	$(BIN)/python -m tests.torment --minutes 5 $(TORMENT)

simulate: dev  ## Seconds: meshes in virtual time, by seeds. SIMULATE="--seed 7 --minutes 10 --story 5" for one of them.
	$(BIN)/python -m tests.simulation --seeds 20 --minutes 0.3 $(SIMULATE)

clean:  ## Remove what make made.
	rm -rf .venv $(MODELS) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
