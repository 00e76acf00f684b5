# The project's commands; `make help` lists them. Everything lives in .venv/ inside the project.
SHELL := /bin/sh
PYTHON ?= python3
export PYTHON
# Tests start thousands of Python processes: each would compile all that it imports, a second of its time.
unexport PYTHONDONTWRITEBYTECODE
BIN := .venv/bin
SEEDS ?= 2000
KILLS ?= 6
SECONDS_OF ?= 600
START ?= 0
PYTEST_ARGS ?=
PYTHONS ?=
WORKERS ?= 6
PLAN ?= classic-range
MINUTES ?= 10
RUNS ?= 200
ONLY ?=
LONG ?=
SUITES ?=
comma := ,
CHURN_ARGS ?=
BENCH_ARGS ?=
BENCH_MINUTES ?= 300
SOAK_ARGS ?=
FRAMEWORKS ?=
BROKER ?= both
FRAMEWORKS_ARGS ?= --page
LAKE_ARGS ?=

# An interrupted run leaves no broker, Kafka or Spark driver behind.
SUPERVISED := $(BIN)/python -m tests.support.supervise
# A figure ends with the round after FIGURE_S, so that a slow one does not take the time of others.
FIGURE_S ?= 120
BENCH = $(SUPERVISED) $(BIN)/python -m bench --minutes $(BENCH_MINUTES) --figure-s $(FIGURE_S)
# What a change of a few lines is tried with: no Kafka, no Spark, no simulation, no processes of other projects.
QUICK_TESTS := tests/assignors tests/columns tests/groups tests/journal tests/lag tests/wire \
	$(wildcard tests/test_*.py)

.DEFAULT_GOAL := help
.PHONY: help setup setup-demo demo quick test test-long test-cluster coordinator-chaos check verify check-deps dist lint types layers sizes docs site picture bench bench-against bench-nightly bench-report fuzz fuzz-kernels fuzz-listener simulate churn spark-histories spark-churn region spark-region spark-region-story spark-everywhere spark-taken-back suites soak frameworks lake-kills lock format clean

##@ Every day
help: ## list the commands
	@awk -F ':.*## ' '/^##@ /{printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## /{printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## the environment alone, with everything for development
	@sh tools/preflight.sh python git
	@sh tools/setup.sh dev

setup-demo:
	@sh tools/preflight.sh python java
	@sh tools/setup.sh demo

demo: setup-demo ## sets up, then runs the main job from start to end
	@$(BIN)/kohort demo $(DEMO_ARGS)

test: setup ## sets up, then runs the tests; PYTHONS="3.12 3.13": the short ones on each of these
ifneq ($(strip $(PYTHONS)),)
	@$(SUPERVISED) $(BIN)/python -m tools.pythons $(PYTHONS)
else
	@sh tools/preflight.sh java
	@$(BIN)/python -m tests.support.class_training
	@$(SUPERVISED) $(BIN)/python -m tests.support.again -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)
endif

quick: setup ## a minute: lint, types of the files that changed, the tests that need no Kafka, Spark or simulation
	@$(BIN)/ruff check --quiet . && $(BIN)/ruff format --quiet --check .
	@changed=$$(git diff --name-only --diff-filter=d HEAD -- 'src/*.py' 'simulation/*.py' 'bench/*.py' 'frameworks/*.py' 'tools/*.py'); \
		[ -z "$$changed" ] || $(BIN)/mypy $$changed
	@$(SUPERVISED) $(BIN)/python -m pytest -q -n 2 -m "not kafka and not spark and not peer and not slow" $(QUICK_TESTS) $(PYTEST_ARGS)

##@ Long runs
test-long: setup ## long, an hour: the tests with those that `make test` leaves out (tests/long_tests.txt)
	@sh tools/preflight.sh java
	@$(BIN)/python -m tests.support.class_training
	@KOHORT_LONG=1 $(SUPERVISED) $(BIN)/python -m tests.support.again -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

test-cluster: setup ## long: three Kafka brokers, killed in turn (KILLS=6) under our clients and our journal, three ZooKeepers under our doors
	@KOHORT_CLUSTER_KILLS=$(KILLS) KOHORT_KAFKA_CLUSTER=1 $(BIN)/python -m pytest tests/client/test_three_brokers.py \
		tests/cluster/test_journal_cluster.py tests/cluster/test_zookeeper_ensemble.py $(PYTEST_ARGS)

coordinator-chaos: setup ## three of our coordinators, of Kafka and of ZooKeeper, killed and stopped (SECONDS_OF=600)
	@sh tools/preflight.sh java
	@KOHORT_CLUSTER_CHAOS=$(SECONDS_OF) $(BIN)/python -m pytest -s tests/cluster/test_chaos.py $(PYTEST_ARGS)

##@ Checks and documents
check: lint types layers sizes ## ruff, mypy, import-linter, sizes, prose

lint: setup
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .

types: setup
	@$(BIN)/mypy

layers: setup
	@$(BIN)/lint-imports --no-logo

sizes: setup
	@$(BIN)/python tools/sizes.py
	@$(BIN)/python tools/hygiene.py
	@$(BIN)/python -m tools.prose

verify: setup ## run the tests behind each promise for MINUTES=10, and write docs/verified.md; ONLY=1.2: one promise, LONG=1: long tests too, FROM=build/tests.xml: the results of the last make test
	@KOHORT_LONG=$(LONG) $(SUPERVISED) $(BIN)/python -m tools.verify --minutes $(MINUTES) --only "$(ONLY)" $(if $(FROM),--results $(FROM))

check-deps: setup ## licences of the pinned packages, and their known vulnerabilities by pip-audit (asks the package index)
	@$(BIN)/python -m tools.dependencies

picture: setup-demo ## run the demo and draw docs/demo.svg from what it prints (PICTURE_ARGS=--region: docs/demo-region.svg)
	@$(BIN)/python tools/demo_picture.py $(PICTURE_ARGS)

docs: setup ## rewrite from the code: docs/commands.md, settings.md, states.md, design/layout.md, errors.md, metrics.md, log-lines.md, the table of protocol-coverage.md, frameworks.md, the names in verified.md, the settings' types
	@$(BIN)/python tools/command_docs.py
	@$(BIN)/python tools/state_tables.py
	@$(BIN)/python -m tools.layout_page
	@$(BIN)/python -m tools.protocol_docs
	@$(BIN)/python -m tools.error_docs
	@$(BIN)/python -m tools.metric_docs
	@$(BIN)/python -m tools.log_line_docs
	@$(BIN)/python -m tools.setting_docs
	@$(BIN)/python -m tools.setting_types
	@$(BIN)/python -m frameworks.page
	@$(BIN)/python -m tools.verify --minutes 0
	@$(BIN)/ruff format --quiet src/kohort/client/setting_types.py

site: setup ## build the documentation's site into build/site, and check its links; the first run fetches MkDocs and, by npm, Mermaid
	@$(BIN)/python -m tools.site

format: setup ## let ruff format and fix what it can
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format --quiet .

dist: setup ## build what a release uploads into dist/, and check it by twine and check-wheel-contents
	@rm -rf dist && $(BIN)/uv build --quiet --out-dir dist
	@$(BIN)/uv run --quiet --isolated --no-project --with-requirements requirements/release.txt \
		sh -c 'twine check --strict dist/*.whl dist/*.tar.gz && check-wheel-contents dist/*.whl'

##@ Figures
bench: setup ## figures beside the peers', one table for each file in bench/; ends within BENCH_MINUTES=300
	@$(BENCH) $(BENCH_ARGS)

bench-report: setup ## the same, kept in bench/report.json and docs/performance.md
	@$(BENCH) --report $(BENCH_ARGS)

bench-nightly: setup ## the same, compared with bench/report.json: names each row that lost more than 5 %
	@$(BENCH) --nightly $(BENCH_ARGS)

bench-against: setup ## this checkout beside another one that is set up: make bench-against OTHER=FOLDER
	@$(BIN)/python -m bench.against $(OTHER) $(BENCH_ARGS)

bench-%: setup
	@$(BIN)/python -m bench $* $(BENCH_ARGS)

##@ Simulation, faults and peers
simulate: setup ## long simulation on all cores: make simulate SEEDS=100000 START=0, SIMULATE_ARGS=--remote: coordinators over Kafka, --clients: our own clients
	@$(BIN)/python -m simulation --seeds $(SEEDS) --start $(START) $(SIMULATE_ARGS)

churn: setup ## members of real clients come and go: make churn PLAN=consumer MINUTES=10 CHURN_ARGS=--kafka
	@$(BIN)/python -m tests.peers.churn $(PLAN) --minutes $(MINUTES) $(CHURN_ARGS)

spark-histories: setup ## the Spark source without a JVM, killed at every call: make spark-histories RUNS=5000 START=0
	@$(BIN)/python -m tests.spark.histories --runs $(RUNS) --start $(START) $(HISTORIES_ARGS)

spark-churn: setup ## three Spark applications in a group, one killed, one paused: make spark-churn MINUTES=10
	@sh tools/preflight.sh java
	@$(BIN)/python -m tests.spark.histories.real --minutes $(MINUTES) $(HISTORIES_ARGS)

region: setup ## long: both machines of a region in virtual time, and processes that are killed: make region SEEDS=20000 KILLS=20
	@$(BIN)/python -m tests.region --seeds $(SEEDS) $(REGION_ARGS)
	@KOHORT_REGION_KILLS=$(KILLS) $(BIN)/python -m pytest tests/region/test_kills.py $(PYTEST_ARGS)

spark-region: setup ## long: Spark queries in a region, killed, paused, joined, stopped: state, joins, signals, PySpark 4.2 (KILLS=14)
	@sh tools/preflight.sh java
	@KOHORT_SPARK_REGION=1 KOHORT_REGION_KILLS=$(KILLS) $(BIN)/python -m pytest tests/spark/region $(PYTEST_ARGS)

spark-region-story: setup ## long: all that can befall Spark queries in a region, in one run: killed, asleep for a minute, joined
	@sh tools/preflight.sh java
	@KOHORT_REGION_STORY=1 $(BIN)/python -m pytest -s tests/spark/region/test_story.py $(PYTEST_ARGS)

spark-everywhere: setup ## one program in every place: local-cluster, standalone, Connect, TLS, PySpark 4.2 and 4.3
	@sh tools/preflight.sh java
	@KOHORT_EVERYWHERE=1 $(BIN)/python -m pytest tests/spark/everywhere $(PYTEST_ARGS)

spark-taken-back: setup ## stateful queries go back to an earlier batch: every operator on every state store
	@sh tools/preflight.sh java
	@KOHORT_EVERYWHERE=1 $(BIN)/python -m pytest tests/spark/region $(PYTEST_ARGS)

suites: setup ## tests that other projects wrote for their clients, against our broker: make suites SUITES=franz-go
	@$(BIN)/python -m tests.peers.suites $(SUITES)

soak: setup ## the whole system at once, a fault each minute: make soak MINUTES=120 (SOAK_ARGS="--fault-s 10 --without-spark")
	@sh tools/preflight.sh java
	@$(SUPERVISED) $(BIN)/python -m tests.soak --minutes $(MINUTES) $(SOAK_ARGS)

frameworks: setup ## Kafka Streams, FastStream … with members and brokers killed: make frameworks FRAMEWORKS=streams,quix BROKER=kohort
	@sh tools/preflight.sh java
	@$(SUPERVISED) $(BIN)/python -m frameworks --broker $(BROKER) $(FRAMEWORKS_ARGS) $(subst $(comma), ,$(FRAMEWORKS))

lake-kills: setup ## workers killed while they write one table, beside Iceberg's Connect sink: make lake-kills MINUTES=3 LAKE_ARGS="kohort --seed 2"
	@sh tools/preflight.sh java
	@$(SUPERVISED) $(BIN)/python -m frameworks.lake_kills --minutes $(MINUTES) $(LAKE_ARGS)

fuzz: setup ## what strangers send, from a kept corpus, against decoders, logins and a broker: make fuzz MINUTES=60 FUZZ_ARGS=--seed=7
	@nice -n 19 $(BIN)/python -m tests.fuzz --minutes $(MINUTES) $(FUZZ_ARGS)

fuzz-kernels: setup ## decoder and encoder against damaged input, built with address and undefined-behaviour sanitizers
	@KOHORT_EXAMPLES=$${KOHORT_EXAMPLES:-2000} sh tests/columns/sanitize.sh $(PYTEST_ARGS)

fuzz-listener: setup ## anything at all is sent to a broker: make fuzz-listener MINUTES=10 FUZZ_ARGS=--seed=7
	@$(BIN)/python -m tests.broker.fuzz --minutes $(MINUTES) $(FUZZ_ARGS)

# Pins are names, versions and hashes only: no address of a registry gets into the files.
LOCK := UV_CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/uv pip compile --quiet --universal \
	--python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url
lock: setup ## recompile the pins from pyproject.toml (LOCK_ARGS=--upgrade for newer versions)
	@$(LOCK) $(LOCK_ARGS) pyproject.toml --all-extras --group dev --group peers -o requirements/dev.txt
	@$(LOCK) $(LOCK_ARGS) pyproject.toml --extra demo --extra speed --group build \
		--constraint requirements/dev.txt -o requirements/demo.txt
	@for pins in frameworks/pins/*.in; do $(LOCK) $(LOCK_ARGS) $$pins -o $${pins%.in}.txt || exit 1; done
	@echo uv | $(LOCK) $(LOCK_ARGS) - -o requirements/uv.txt
	@echo pip-audit | $(LOCK) $(LOCK_ARGS) - -o requirements/audit.txt
	@printf 'check-wheel-contents\ncibuildwheel\ntwine\n' | $(LOCK) $(LOCK_ARGS) - -o requirements/release.txt
	@printf 'mkdocs-material\nmkdocstrings[python]\n' | $(LOCK) $(LOCK_ARGS) - --constraint requirements/dev.txt -o requirements/site.txt

clean: ## remove the environment and what was built
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src -name '*.so' -delete
