# `make demo` shows the main job, `make test` proves it; both need only Python 3.11+, git, make and the registries.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
WORKERS ?= 4
# Thousands of short processes: each would compile the project anew where the environment forbids bytecode.
export PYTHONDONTWRITEBYTECODE :=
STACK := $(BIN)/python -m outbox.devstack run --
# Measured is a broker as it runs in production, with both compilers of the JVM.
BENCH_KAFKA ?= --kafka-java-option=-XX:TieredStopAtLevel=4

# They fail where a client words its log otherwise, or knows other errors.
CANARIES := tests/faults/exactly_once/test_hidden_ends.py tests/harvest/exactly_once/test_faults.py \
	tests/edges/kafka/test_trouble_in_the_log.py tests/core/test_faults.py
CLIENTS ?= '==2.16.0' '>=2.16,<3'

.PHONY: help install demo check test coverage torture canaries bench dist docs screenshots lint format clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

$(VENV)/.venv-made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "outbox needs Python 3.11 or newer; $(PYTHON) is older. Run: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.demo-installed: $(VENV)/.venv-made pyproject.toml
	$(BIN)/python -m pip install --disable-pip-version-check -e ".[harvest,devstack]"
	@touch $@

$(VENV)/.demo-spark-installed: $(VENV)/.venv-made pyproject.toml
	$(BIN)/python -m pip install --disable-pip-version-check -e ".[spark,devstack]"
	@touch $@

$(VENV)/.dev-installed: $(VENV)/.venv-made pyproject.toml
	$(BIN)/python -m pip install --disable-pip-version-check -e ".[dev]"
	@touch $@

install: $(VENV)/.dev-installed  ## everything that the other targets need

demo: $(VENV)/.demo$(if $(SPARK),-spark)-installed  ## from a Django transaction to a Kafka topic, counted by a consumer (SERVE=1 stays up, SPARK=1 harvests with Spark and verifies, CHAIN=1 sends orders through two services and kills their processes)
	$(STACK) $(abspath $(BIN))/python $(if $(CHAIN),-m example_project.chain,example_project/demo.py $(if $(SERVE),--serve) $(if $(SPARK),--spark))

check: lint  ## format, style, types and every test that needs no server, in a minute
	$(BIN)/python -m pytest --no-servers -m "not slow and not torture" -n $(WORKERS) --dist worksteal -q $(ARGS)

test: $(VENV)/.dev-installed  ## the tests, on a real PostgreSQL and a real Kafka
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations=15 $(ARGS)

coverage: $(VENV)/.dev-installed  ## the tests, and which branches they leave out
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --cov --cov-report=term:skip-covered $(ARGS)

torture: $(VENV)/.dev-installed  ## long fault runs
	$(BIN)/python -m pytest -m torture $(ARGS)

canaries: $(VENV)/.dev-installed  ## what outbox relies on in the Kafka client, with the oldest version and the newest (CLIENTS="==2.17.0")
	@for client in $(CLIENTS); do \
		folder="$(VENV)/canaries/confluent-kafka$$client"; rm -rf "$$folder"; \
		$(BIN)/python -m pip install -q --disable-pip-version-check --target "$$folder" "confluent-kafka$$client" && \
		PYTHONPATH="$$folder" $(BIN)/python -c 'import confluent_kafka as c; print("confluent-kafka", c.__version__, "librdkafka", c.libversion()[0])' && \
		PYTHONPATH="$$folder" $(BIN)/python -m pytest $(CANARIES) -n0 -q $(ARGS) || exit 1; \
	done

bench: $(VENV)/.dev-installed  ## measurements, printed and never asserted
	$(BIN)/python -m outbox.devstack run $(BENCH_KAFKA) -- $(abspath $(BIN))/python -m benchmarks $(ARGS)

dist: $(VENV)/.dev-installed  ## the wheel and the source archive for a release, in dist/
	rm -rf dist
	$(BIN)/python -m build .
	$(BIN)/python -m twine check --strict dist/*

docs: $(VENV)/.dev-installed  ## the documents as a site, in build/site; a warning is an error, and no external address is contacted
	rm -rf build/site
	$(BIN)/python -m sphinx -W --keep-going -q -c docs . build/site
	@echo "open build/site/index.html"

screenshots: $(VENV)/.dev-installed  ## pictures of the admin from the running demo, into docs/images; needs Chromium
	$(STACK) $(abspath $(BIN))/python -m example_project.screenshots $(ARGS)

lint: $(VENV)/.dev-installed  ## format, style and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.dev-installed  ## apply format and simple fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## remove what was built, not what was downloaded
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .coverage*
