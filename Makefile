# Sets up what each target needs, then runs it. `make` alone lists the targets.

VENV := .venv
PY := $(VENV)/bin/python
# Installed in two steps: what runs the package with Spark, and its demo; then what works on it.
RUNTIME := $(VENV)/.runtime
INSTALLED := $(VENV)/.installed
JAVA := $(VENV)/.java-home

# Which Spark to install; by default the newest. Another version goes into an environment of its own:
# make test VENV=.venv-4.0 SPARK='==4.0.*'
SPARK :=
OLDER := 4.0 4.1

LOWEST := .venv-lowest
LOWEST_TESTS := tests/record tests/log tests/producer tests/options tests/cli tests/registry tests/values tests/bucket tests/web

# The first of these is used that runs, is new enough and can create virtual environments.
PYTHON ?= python3.13 python3.12 python3.11 python3

# Spark's workers must run the Python that has the package, on the Spark that came with it.
export PYSPARK_PYTHON := $(CURDIR)/$(PY)
export PYSPARK_DRIVER_PYTHON := $(CURDIR)/$(PY)
unexport SPARK_HOME SPARK_CONF_DIR
# Each action of Spark starts Python several times, which would compile the package each time.
unexport PYTHONDONTWRITEBYTECODE

# Most tests of Spark wait for Spark; a file's tests share its sessions and servers.
PARALLEL := -n 4 --dist loadfile --no-loadscope-reorder

# Tests of brokers wait for them half of the time; a file's tests share its brokers, and each process has its own.
PARALLEL_INTEROP := -n 2 --dist loadfile --no-loadscope-reorder

# Damaged rounds compute all the time, and each test has its own: a core each.
PARALLEL_FUZZ := -n 2 --dist load --maxschedchunk 1

PYTEST = JAVA_HOME="$$(cat $(JAVA) 2>/dev/null)" $(PY) -m pytest

# Notebooks that tests/test_stranger.py runs too, from the wheel; it installs the newest Spark.
SHOWN_TWICE := $(if $(SPARK),,--deselect tests/test_notebooks.py::test_notebook_runs_and_shows_what_it_is_stored_with)

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast test-spark soak lowest interop parity fuzz lint format docs pages dist stranger bench bench-check bench-bucket bench-kafka notebooks clean java

help: ## List the targets
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  %-11s  %s\n", $$1, $$2 }' Makefile

demo: java ## Write a year of flights into a Kafka log with Spark, read it back, check it
	@echo "Starting Spark ..."
	@JAVA_HOME="$$(cat $(JAVA))" $(VENV)/bin/spark-submit --properties-file conf/spark-defaults.conf spark_kbatch/spark/demo.py

test: java $(INSTALLED) ## Run every test that is not slow
	$(PYTEST) $(PARALLEL) -m 'not slow and not interop'

test-fast: $(INSTALLED) ## Run the tests that are not slow and need no Spark
	$(PYTEST) -m 'not spark and not slow and not interop'

test-spark: java $(INSTALLED) ## Run the tests that need Spark and are not slow
	$(PYTEST) $(PARALLEL) -m 'spark and not slow and not interop'

soak: java $(INSTALLED) ## Run the slow tests, those that do more here than in `test`, and what `test` has with Spark on 4.0 and 4.1
	HYPOTHESIS_PROFILE=soak $(PYTEST) $(PARALLEL) -m '(slow or more_in_soak) and not interop' $(SHOWN_TWICE)
	set -e; for version in $(OLDER); do HYPOTHESIS_PROFILE=soak $(MAKE) VENV=.venv-$$version SPARK="==$$version.*" test-spark; done

lowest: $(INSTALLED) ## Test without Spark on Python 3.11 and the lowest versions that pyproject.toml accepts
	mkdir -p build
	$(PY) conf/lowest.py > build/lowest.txt
	test -x $(LOWEST)/bin/python || python3.11 -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --disable-pip-version-check -c build/lowest.txt -e '.[spark,registry,bucket,ui,test]'
	$(LOWEST)/bin/python -m pytest -m 'not spark and not slow and not interop' --ignore=tests/web/test_pictures.py $(LOWEST_TESTS)

interop: java $(INSTALLED) ## Test against a real Kafka broker and its tools, fetched by Maven, with kcat, a schema registry, and on servers of object stores
	$(PYTEST) $(PARALLEL_INTEROP) -m interop tests/interop tests/server tests/bucket
	set -e; for version in $(OLDER); do $(MAKE) VENV=.venv-$$version SPARK="==$$version.*" parity; done

parity: java $(INSTALLED) ## Compare with Spark's own connector, and submit a job; needs Maven
	$(PYTEST) $(PARALLEL_INTEROP) -m 'interop or slow' tests/interop/test_batch_parity.py tests/interop/test_stream_parity.py tests/interop/test_lakehouse.py tests/spark/test_shipped.py

fuzz: $(INSTALLED) ## Read randomly damaged batches, logs and clusters, with bounds checks in compiled code
	NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$(VENV)/bounds-checked KBATCH_FUZZ_ROUNDS=$${KBATCH_FUZZ_ROUNDS:-10000} $(PY) -m pytest $(PARALLEL_FUZZ) tests/fuzz

dist: $(INSTALLED) ## Build the wheel and the source distribution into dist/, and check them
	rm -rf dist
	$(PY) -m build
	$(PY) -m twine check --strict dist/*

stranger: java $(INSTALLED) ## Replay README, docs, commands and notebooks with the wheel, in an empty folder and environment
	$(PYTEST) tests/test_stranger.py

lint: $(INSTALLED) ## Check style and types, and print the size of each room
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy
	@$(PY) -m tests.support.sizes

format: $(INSTALLED) ## Format the code, and fix what ruff can fix
	$(PY) -m ruff check --fix
	$(PY) -m ruff format

docs: $(INSTALLED) ## Regenerate what docs/ has from the code, and build the site into build/site
	$(PY) -m tests.support.generated_docs
	$(PY) -m sphinx --quiet --fail-on-warning --keep-going -c docs/site . build/site
	@echo "The site is in build/site: open build/site/index.html"

pages: $(INSTALLED) ## Look at all pages of the site, and of `kbatch ui`, in Chromium, by eye, by Tab and with axe-core
	@sh conf/ensure-chromium.sh > /dev/null
	$(PIP_INSTALL) playwright axe-playwright-python
	$(PYTEST) -m interop tests/test_pages.py tests/web

bench: java $(INSTALLED) ## Measure the speed of encoding, decoding, writing and reading
	$(PYTEST) -s tests/benchmarks --ignore=tests/benchmarks/bench_kafka.py --ignore=tests/benchmarks/bench_bucket.py --ignore=tests/benchmarks/bench_values.py -o python_files='bench_*.py' -o python_functions='bench_*'

bench-check: export KBATCH_BENCH_CHECK := 1
bench-check: bench ## Do as `bench`, and fail if a target is missed

bench-bucket: java $(INSTALLED) ## Measure a cluster in a bucket, and Delta Lake beside it; needs Go
	$(PIP_INSTALL) deltalake
	$(PYTEST) -s tests/benchmarks/bench_bucket.py -o python_files='bench_*.py' -o python_functions='bench_*'

bench-kafka: java $(INSTALLED) ## Measure a real broker beside Spark's connector and other clients, and Avro beside Spark's; needs Maven
	$(PYTEST) -s tests/benchmarks/bench_kafka.py tests/benchmarks/bench_values.py -o python_files='bench_*.py' -o python_functions='bench_*'

notebooks: java $(INSTALLED) ## Run every notebook again, and store its outputs
	KBATCH_REWRITE_NOTEBOOKS=1 $(PYTEST) tests/test_notebooks.py

clean: ## Remove what the other targets created, except the virtual environments
	rm -rf build dist demo-data spark-warehouse .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name '.venv*' -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

# Checked in every run, because a runtime can go away; once per run, because it may install one.
java: $(RUNTIME)
	@sh conf/ensure-java.sh > $(JAVA)

# Modules are compiled when they are imported, which most of them never are.
PIP_INSTALL := $(PY) -m pip install --disable-pip-version-check --no-compile

$(RUNTIME): pyproject.toml
	@for python in $(PYTHON); do \
	    $$python -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break; \
	    python=; \
	done; \
	if [ -z "$$python" ]; then \
	    echo "Python 3.11 or newer with its venv module is needed; none of these is one: $(PYTHON)" >&2; \
	    echo "Name yours with: make PYTHON=/path/to/python3   (Debian, Ubuntu: apt-get install python3-venv)" >&2; \
	    exit 1; \
	fi; \
	$(PY) -c '' 2>/dev/null || $$python -m venv --clear $(VENV)
	@echo "Installing Spark, which is 460 MB, and what else the package needs, into $(VENV); later runs find it there"
	$(PIP_INSTALL) -e '.[demo]' 'pyspark$(SPARK)'
	@touch $@

$(INSTALLED): $(RUNTIME)
	@echo "Installing what tests and tools need into $(VENV)"
	$(PIP_INSTALL) -e '.[dev]' 'pyspark$(SPARK)'
	@touch $@
