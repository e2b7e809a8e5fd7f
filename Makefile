# Every target sets up what it needs, once; stamp files make the second time quick.
#
#   make test PYTHON=python3.12          another Python for the environment in .venv
#   make test ARGS="-k aggregation -x"   only pytest, with these arguments; also for the demo and the benchmark
#   make test PROCESSES=0                all tests in one process, one after the other
#   make test SPARKS="4.1 4.2"           the short set of tests on these older Sparks; SPARKS= for none
#   make test CKPT_TURN=all              also the long tests that take turns

PYTHON ?= python3
PROCESSES ?= 3
JAVA   := $(if $(JAVA_HOME),$(JAVA_HOME)/bin/java,java)
VENV   := .venv
PY     := $(VENV)/bin/python
SPARK  := 4.3
OTHERS := $(filter-out $(SPARK),$(patsubst jvm-bridge/src/spark-%,%,$(wildcard jvm-bridge/src/spark-*)))
JAR    := pyspark_ckpt/jars/pyspark-ckpt-spark-$(SPARK).jar
OTHER_JARS := $(OTHERS:%=pyspark_ckpt/jars/pyspark-ckpt-spark-%.jar)
SHIM   := $(shell find jvm-bridge/src/main jvm-bridge/src/spark-* -type f)

# An installed sbt, else its launcher by Maven, else none: then the Scala compiler inside PySpark builds the jar.
SBT_LAUNCH := .tools/sbt-launch-1.13.1.jar
ifneq ($(shell command -v sbt),)
SBT := PYTHON=$(PY) sbt -Dsbt.color=false
else ifneq ($(shell command -v mvn),)
SBT := PYTHON=$(PY) $(JAVA) -Xmx2g -Dsbt.color=false -jar $(SBT_LAUNCH)
SBT_READY := $(SBT_LAUNCH)
endif

# A real S3 service for the tests, where there is Go to build it; else they look for a Docker engine.
ifneq ($(shell command -v go),)
S3_READY := .tools/bin/versitygw
endif

# Emulators of Google Cloud Storage, where there is Go, and of Azure Blob Storage, where there is npm.
ifneq ($(shell command -v go),)
GCS_READY := .tools/gcs/fake-gcs-server
endif
ifneq ($(shell command -v npm),)
AZURE_READY := .tools/azurite/.ready
endif

# For the tests, where there is Maven to fetch them: Hadoop's mini cluster, a real HDFS and YARN, and its connector to
# S3; Kafka's broker, and Spark's connector to it.
ifneq ($(shell command -v mvn),)
HDFS_READY := .tools/hdfs/.ready
YARN_READY := .tools/yarn/.ready
S3A_READY := .tools/s3a/.ready
GS_READY := .tools/gcs-connector/.ready
KAFKA_READY := .tools/kafka/.ready
endif

# Delta, for the short set of tests: the release for a Spark.
DELTA_3.5 := delta-spark_2.12:3.3.2
ifneq ($(shell command -v mvn),)
DELTA_READY := .tools/delta/%/.ready
endif

INSTALL := -m pip install --quiet --disable-pip-version-check --editable

NO_SBT := needs sbt, or Maven to fetch it: neither is installed

export SPARK_LOCAL_IP ?= 127.0.0.1
export PYSPARK_PYTHON := $(CURDIR)/$(PY)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help java setup unit demo demo-live test test-all test-scala services test-python test-older-sparks promtool bench soak compiled lint types layers format docs site jar jars wheel clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s%s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: compiled ## the environment in .venv alone: enough for `make unit`, without Java

unit: compiled ## tests without Spark, a JVM or a service: in a minute
	@$(PY) -m pytest -q -n 2 --unit $$($(PY) -m integration.unit) $(ARGS)

demo: compiled $(JAR) ## a stream of 336,776 real flights, killed in the middle, compared with a batch result
	@$(PY) -m integration.demo $(ARGS)

demo-live: compiled $(JAR) $(KAFKA_READY) ## real-time mode on Kafka, its latency drawn on the web page; ARGS="--rate 500 --seconds 60"
	@$(PY) -m integration.demo.live $(ARGS)

ifneq ($(ARGS),)
test: compiled ## everything except the largest matrices; long tests rotate. With ARGS: pytest alone, all that it selects
	@CKPT_TURN=$${CKPT_TURN:-all} $(PY) -m pytest -v -n $(PROCESSES) $(ARGS)
else
test: compiled
	@$(PY) -m integration.phases lint jar test-scala services test-python test-older-sparks
endif

services: compiled $(S3_READY) $(GCS_READY) $(AZURE_READY) $(HDFS_READY) $(YARN_READY) $(S3A_READY) $(GS_READY) $(KAFKA_READY) .tools/spark.jsa

test-python: compiled $(JAR)
	@$(PY) -m pytest -v -n $(PROCESSES)

test-older-sparks: compiled
	@for spark in $(if $(filter undefined,$(origin SPARKS)),$$($(PY) -m integration.turns),$(SPARKS)); do \
		$(MAKE) --no-print-directory test-spark-$$spark || exit 1; done

test-all: ## as test, with all long tests, and the short set on every older Spark
	@CKPT_TURN=all $(MAKE) --no-print-directory test

# The tests that every Spark has to pass.
test-spark-%: $(VENV)/.ready .tools/spark-%/.ready pyspark_ckpt/jars/pyspark-ckpt-spark-%.jar $(S3_READY) $(DELTA_READY)
	@echo "The short set of tests on Spark $*"
	@PYSPARK_PYTHON=$(CURDIR)/.tools/spark-$*/bin/python .tools/spark-$*/bin/python -m pytest -v -n $(PROCESSES) \
		$$(.tools/spark-$*/bin/python -m integration.short) $(ARGS)

test-scala: $(VENV)/.ready $(SBT_READY)
ifdef SBT
	@$(SBT) test
else
	@echo "NOT RUN: the tests of the shim in Scala. $(NO_SBT)."
endif

bench: compiled $(JAR) $(S3_READY) ## ours against Spark's own providers: a table, and a plot in bench/out
	@$(PY) -m integration.bench $(ARGS)

# The same on an older Spark, for the workloads that it has: make bench-spark-3.5 ARGS="--only aggregation dedup join".
bench-spark-%: $(VENV)/.ready .tools/spark-%/.ready pyspark_ckpt/jars/pyspark-ckpt-spark-%.jar
	@.tools/spark-$*/bin/python $(INSTALL) '.[spark$(subst .,,$*),bench]'
	@PYSPARK_PYTHON=$(CURDIR)/.tools/spark-$*/bin/python .tools/spark-$*/bin/python -m integration.bench $(ARGS)

soak: compiled $(JAR) $(S3_READY) $(HDFS_READY) $(SBT_READY) .tools/spark.jsa ## random kills and faults on real Spark; ARGS="--minutes 60 --seed 1"
	@$(PY) -m integration.soak $(ARGS)
	@CKPT_MATRIX=all $(PY) -m pytest integration/savepoints
	@CKPT_MATRIX=all $(PY) -m pytest -m matrix tests integration
ifdef SBT
	@CKPT_FUZZ="$(ARGS)" $(SBT) "testOnly *StateStoreFuzzSuite"
endif

# As pip does where it installs a package. Else each Python worker compiles it anew if Python may write no bytecode.
compiled: $(VENV)/.ready
	@$(PY) -m compileall -q pyspark_ckpt state_store operators

lint: types layers $(SBT_READY) ## ruff, mypy, layers, names, sizes and scalafmt
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m tests.checks
ifdef SBT
	@$(SBT) checkScala
else
	@echo "NOT RUN: scalafmt. $(NO_SBT)."
endif

types: $(VENV)/.ready
	@$(PY) -m mypy -p pyspark_ckpt
	@$(PY) -m mypy --explicit-package-bases tests integration

layers: $(VENV)/.ready
	@$(VENV)/bin/lint-imports --no-cache --no-logo

format: $(VENV)/.ready $(SBT_READY) ## let ruff and scalafmt lay out every file
	@$(PY) -m ruff check --fix-only --quiet .
	@$(PY) -m ruff format .
ifdef SBT
	@$(SBT) formatScala
else
	@echo "NOT RUN: scalafmt. $(NO_SBT)."
endif

docs: $(VENV)/.ready ## write docs/options.md from state_store/options.json
	@$(PY) docs/write_options.py

# From another folder: beside the package, the reader of docstrings would take a part of it for the whole. With its
# option --quiet, MkDocs would not count warnings.
SITE ?= $(CURDIR)/mkdocs.yml
site: .tools/site/.ready ## build the documentation as a site into build/site; dead links are errors
	@rm -rf .tools/site/packages && mkdir .tools/site/packages
	@cp -RL pyspark_ckpt .tools/site/packages
	@cd .tools/site && PYTHONPATH=$(CURDIR) NO_MKDOCS_2_WARNING=1 bin/python -m mkdocs build --strict --config-file $(SITE) \
		>build.log 2>&1 || { grep -v '^INFO' build.log; exit 1; }
	@echo "The first page is build/site/index.html. With search: $(PY) -m http.server --bind 127.0.0.1 --directory build/site"

jar: $(JAR) ## build the shim for the newest Spark into pyspark_ckpt/jars

jars: $(JAR) $(OTHER_JARS) ## build the shim for every Spark

wheel: jars ## build the wheel, with a jar for every Spark, into dist
	@rm -f dist/pyspark_ckpt-*.whl
	@$(PY) -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --config-settings spark=all --wheel-dir dist .
	@ls dist/*.whl

# Java, for what needs it. Order-only: it is looked for whenever that is made.
java:
	@$(JAVA) -version 2>&1 | grep -qE 'version "(1[7-9]|2[0-9])' || \
		{ echo "Java 17 or newer is needed: install it, or set JAVA_HOME."; exit 1; }

$(JAR): $(SHIM) state_store/options.json state_store/metrics.json build.sbt jvm-bridge/build_jar.py | java $(VENV)/.ready $(SBT_READY)
ifdef SBT
	@$(SBT) package
else
	@$(PY) jvm-bridge/build_jar.py
endif
	@touch $@

$(OTHER_JARS): pyspark_ckpt/jars/pyspark-ckpt-spark-%.jar: $(SHIM) state_store/options.json state_store/metrics.json build.sbt jvm-bridge/build_jar.py | java $(VENV)/.ready .tools/spark-%/.ready $(SBT_READY)
ifdef SBT
	@$(SBT) spark-$(subst .,_,$*)/package
else
	@.tools/spark-$*/bin/python jvm-bridge/build_jar.py
endif
	@touch $@

clean: ## remove everything that make has made
	rm -rf $(VENV) $(JAR) $(OTHER_JARS) .tools .bsp build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis bench/out
	rm -rf target jvm-bridge/target project/target project/project spark-warehouse artifacts metastore_db derby.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- set-up -----------------------------------------------------------------------------------------------------------

$(VENV)/.ready: pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.10, 3.11, 3.12 or 3.13 is needed: set PYTHON=<interpreter>."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' || \
		{ echo "Python 3.10, 3.11, 3.12 or 3.13 is needed, and $(PYTHON) is $$($(PYTHON) -V): set PYTHON=<interpreter>."; exit 1; }
	@test -x $(PY) || { echo "Making $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "Installing PySpark and the tools into $(VENV): some minutes the first time"
	@$(PY) $(INSTALL) '.[dev]'
	@touch $@

# An older Spark, and what the short set of tests needs.
.tools/spark-%/.ready: pyproject.toml | $(VENV)/.ready
	@test -x .tools/spark-$*/bin/python || { \
		for python in $(if $(filter 3.5,$*),$(PYTHON) python3.11 python3.10,$(PYTHON)); do \
			$$python -c 'import sys; sys.exit("$*" == "3.5" and sys.version_info >= (3, 12))' 2>/dev/null && break; \
			python=; \
		done; \
		test "$$python" || { echo "Spark 3.5 needs Python 3.10 or 3.11: install one, or leave it out: make test SPARKS=4.0"; exit 1; }; \
		$$python -m venv .tools/spark-$*; }
	@echo "Installing PySpark $* into .tools/spark-$*: some minutes the first time"
	@.tools/spark-$*/bin/python $(INSTALL) '.[spark$(subst .,,$*),short-tests]'
	@touch $@

# What builds the site, in an environment of its own: the tests need none of it.
.tools/site/.ready: pyproject.toml | $(VENV)/.ready
	@test -x .tools/site/bin/python || $(PYTHON) -m venv .tools/site
	@$(PY) -c 'from importlib.metadata import requires; print(*[each.split(";")[0] for each in requires("pyspark-ckpt") if "extra == \"site\"" in each], sep="\n")' \
		>.tools/site/requirements.txt
	@.tools/site/bin/python -m pip install --quiet --disable-pip-version-check --requirement .tools/site/requirements.txt
	@touch $@

.tools/bin/versitygw:
	@echo "Building versitygw, the S3 service of the tests: about a minute the first time"
	@GOBIN=$(CURDIR)/.tools/bin go install github.com/versity/versitygw/cmd/versitygw@v1.8.0

promtool: .tools/bin/promtool ## build promtool, which checks the alerts in the tests: some minutes, with Go

# Its module has replacements, which `go install` of a version refuses: so it is built as a dependency of another one.
.tools/bin/promtool:
	@command -v go >/dev/null || { echo "promtool is built with Go: install it, or put a promtool on PATH."; exit 1; }
	@rm -rf .tools/promtool && mkdir -p .tools/promtool
	@cd .tools/promtool && go mod init promtool 2>/dev/null && go get github.com/prometheus/prometheus/cmd/promtool@v0.54.1 && \
		GOBIN=$(CURDIR)/.tools/bin go install github.com/prometheus/prometheus/cmd/promtool

.tools/gcs/fake-gcs-server:
	@echo "Building fake-gcs-server, the Google Cloud Storage of the tests: about a minute the first time"
	@GOBIN=$(CURDIR)/.tools/gcs go install github.com/fsouza/fake-gcs-server@v1.56.1

.tools/azurite/.ready:
	@echo "Installing Azurite, the Azure Blob Storage of the tests: half a minute the first time"
	@npm install --silent --no-audit --no-fund --prefix .tools/azurite azurite@3.37.0
	@touch $@

.tools/spark.jsa: $(VENV)/.ready | $(JAR)
	@echo "Making an archive of Spark's classes, from which the JVMs of the tests start faster: most of a minute"
	@mkdir -p .tools && rm -f $@
	@$(PY) -m integration.class_archive $@ >.tools/class_archive.log 2>&1 || { cat .tools/class_archive.log; exit 1; }

.tools/hdfs/.ready: tests/services/hdfs_service.xml
	@echo "Fetching Hadoop's mini cluster, the HDFS of the tests"
	@rm -rf .tools/hdfs
	@mvn -q -B -f $< dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/.tools/hdfs
	@touch $@

# What YARN needs besides, and an environment for its containers, into which the tests install the package.
.tools/yarn/.ready: integration/yarn/besides.xml pyproject.toml | $(VENV)/.ready .tools/hdfs/.ready
	@echo "Fetching the rest of Hadoop's mini cluster, and what its containers need: a minute"
	@rm -rf .tools/yarn
	@mvn -q -B -f $< dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/.tools/yarn/jars
	@$(PY) -m venv .tools/yarn/environment
	@.tools/yarn/environment/bin/python -m pip install --quiet --disable-pip-version-check '.[hdfs]' venv-pack==0.2.0
	@touch $@

.tools/s3a/.ready: integration/s3a/pom.xml
	@echo "Fetching S3A, Hadoop's connector to S3, for the tests"
	@rm -rf .tools/s3a
	@mvn -q -B -f $< dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/.tools/s3a
	@touch $@

.tools/gcs-connector/.ready: integration/clouds/connectors.xml
	@echo "Fetching Hadoop's connector to Google Cloud Storage, for the tests"
	@rm -rf .tools/gcs-connector
	@mvn -q -B -f $< dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/.tools/gcs-connector
	@touch $@

.tools/kafka/.ready: integration/kafka/broker.xml integration/kafka/connector.xml
	@echo "Fetching Kafka and Spark's connector to it, for the tests"
	@rm -rf .tools/kafka
	@for part in broker connector; do \
		mvn -q -B -f integration/kafka/$$part.xml dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/.tools/kafka/$$part || exit 1; \
	done
	@touch $@

.PRECIOUS: .tools/delta/%/.ready
.tools/delta/%/.ready:
	@mkdir -p $(@D)
	@for artifact in $(if $(DELTA_$*),$(DELTA_$*) delta-storage:$(lastword $(subst :, ,$(DELTA_$*)))); do \
		mvn -q -B dependency:copy -Dartifact=io.delta:$$artifact -DoutputDirectory=$(CURDIR)/$(@D) || exit 1; done
	@touch $@

$(SBT_LAUNCH):
	@mkdir -p .tools
	@mvn -q -B dependency:copy -Dartifact=org.scala-sbt:sbt-launch:1.13.1 -DoutputDirectory=.tools
