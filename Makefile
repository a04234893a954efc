# Each target sets up what it needs; `make demo` and `make test` are the two a user needs.
# Another interpreter: make PYTHON=/path/to/python3.12 …

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.14; do \
	$$p -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
GENERATE := $(BIN)/python proto/generate.py

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-compiled lint docs bench compiled conformance fuzz kube proto python
.DELETE_ON_ERROR:

help:
	@echo "make demo    Ray Serve, Envoy and the picker between them; KEEP=1 keeps them up, BACKEND=sim needs no Ray"
	@echo "make test    all tests; TESTS=tests/routing for some"
	@echo "make lint    ruff, mypy, import-linter, buf, and whether generated code is up to date"
	@echo "make docs    the documents as a site, in .site/"
	@echo "make bench   what the picker costs, through a real Envoy"
	@echo "make compiled  .compiled, where all is as here, but what requests pass is compiled; needs a C compiler"
	@echo "make test-compiled  the tests of what is compiled, there"
	@echo "make conformance  h2spec against our HTTP/2 (needs Go); make fuzz  ten minutes of random clients"
	@echo "make proto   write picker/extproc/_generated from proto/"
	@echo "make setup   .venv with everything for these"
	@echo "make kube    a Kubernetes API server for the tests that need one: needs Go, takes some ten minutes once"
	@echo "make python  the interpreter that .venv is made with"

setup: .venv/dev.stamp

demo: .venv/demo.stamp
	KEEP="$(KEEP)" BACKEND="$(BACKEND)" $(BIN)/python -m bench.demo

# Two at a time, for most wait for Envoy, Ray or Kubernetes; tests/conftest.py says which do not go together.
test: .venv/dev.stamp
	$(BIN)/python -m pytest $(or $(TESTS),-n 2)

# What is compiled, tested as such.
test-compiled: compiled
	cd .compiled && $(BIN)/python -m pytest -n 2 $(addprefix tests/,extproc inference metrics routing scorer serving replay \
		test_sequences.py test_streams.py test_broken_streams.py test_copies.py)

lint: .venv/dev.stamp
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	cd proto && ../$(BIN)/buf lint
	$(GENERATE) --check

docs: .venv/docs.stamp
	$(BIN)/python docs/site/reference.py --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: compiled
	cd .compiled && $(BIN)/python -m bench.e2e

# Built where pip builds it for the image, too; `build` is kept, so that only what changed is compiled again.
compiled: .venv/dev.stamp
	rm -rf .compiled build/lib*
	SERVE_PICKER_COMPILE=1 $(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--no-build-isolation --no-deps --target .compiled .
	cd .compiled && ln -s ../.venv . && for name in ../*; do [ -e "$${name##*/}" ] || ln -s "$$name" .; done

conformance: .venv/dev.stamp
	$(BIN)/python -m tests.conformance

fuzz: .venv/dev.stamp
	$(BIN)/python -m tests.fuzz

proto: .venv/dev.stamp
	$(GENERATE)

# Needs nothing of .venv, so that it can go on beside the making of that.
kube:
	nice $(PYTHON) -m tests.support.kube.build

python:
	@echo $(PYTHON)

.venv/bin/python:
	@test -n "$(PYTHON)" || { echo "needs Python 3.11 or newer with venv (on Debian: apt-get install python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv .venv

# Apart from all else, for one test: its old `opentelemetry.proto` would break Ray's metrics.
.venv/xds-protos: constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps --upgrade --target $@ xds-protos
	@touch $@

.venv/dev.stamp: .venv/xds-protos

# One stamp an extra (`demo`, `dev`), older than what it was made from if that has changed.
.venv/%.stamp: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$*]'
	@touch $@
