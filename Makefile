# The Python that makes the virtual environment: 3.10, 3.11 or 3.12.
PYTHON ?= python3
# Passed on by serve, loadtest, test and bench, for instance: make serve ARGS="--port 9000"
ARGS ?=
# The Python of the GPU host that a bundle is for.
PYTHON_VERSION ?= 3.12

SHELL := bash -o pipefail
QUIETER := sed -u -E '/^(Ignoring |Requirement already satisfied|Looking in)/d; s/^(Installing collected packages|Successfully installed).*/\1/'
VENV := .venv
RUN := $(VENV)/bin/python -m
INSTALLED := $(VENV)/.installed
INSTALLED_LOADTEST := $(VENV)/.installed-loadtest
# What tests and measurements need beside it: torch and transformers as references, linters, official clients.
INSTALLED_DEV := $(VENV)/.installed-dev

.DEFAULT_GOAL := help
.PHONY: help install install-dev same-python serve loadtest test test-thorough runtimes upgrade check audit bench clients bundle images \
	lock clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

define make_venv
@$(PYTHON) -c 'from launcher.python_version import refuse_unsupported_python as check; check()'
@$(RUN) pip --version > /dev/null 2>&1 || { rm -rf $(VENV) && $(PYTHON) -m venv $(VENV); } \
	|| { rm -rf $(VENV); exit 1; }
endef
PIP_INSTALL := $(RUN) pip install --disable-pip-version-check --constraint requirements.lock --editable
# Only files that are known byte for byte, those that build the project itself among them.
HASHED_INSTALL := $(RUN) pip install --disable-pip-version-check --require-hashes --requirement

install: same-python $(INSTALLED) ## Make .venv with the `inflight` command in it (PYTHON=python3.11 chooses the Python)

$(INSTALLED): pyproject.toml requirements.lock requirements.hashes
	$(make_venv)
	$(HASHED_INSTALL) requirements.hashes | $(QUIETER)
	@$(RUN) pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# By uv, which takes a fifth of pip's time for so many packages; by pip where uv, which does not read pip's
# settings, finds no registry.
install-dev: same-python $(INSTALLED_DEV)

$(INSTALLED_DEV): pyproject.toml requirements.lock
	$(make_venv)
	@$(RUN) pip install --disable-pip-version-check --quiet --constraint requirements.lock uv
	@echo "installing what tests and measurements need"
	@VIRTUAL_ENV=$(VENV) $(VENV)/bin/uv pip install --quiet $${PIP_FIND_LINKS:+--find-links "$$PIP_FIND_LINKS"} \
		--constraint requirements.lock --editable '.[dev]' || $(PIP_INSTALL) '.[dev]' | $(QUIETER)
	@touch $(INSTALLED) $(INSTALLED_LOADTEST) $@

# A Python asked for by name is not passed over because there is a .venv of another one.
same-python:
ifneq ($(origin PYTHON),file)
	@there=$$($(VENV)/bin/python -V 2> /dev/null); \
	if [ -n "$$there" ] && [ "$$there" != "$$($(PYTHON) -V)" ]; then \
		echo "$(VENV) has $$there, not PYTHON=$(PYTHON); anew: make clean install PYTHON=$(PYTHON)" >&2; exit 1; \
	fi
endif

serve: install ## Start everything on this machine: inflight up $(ARGS)
	@exec $(VENV)/bin/inflight up $(ARGS)

$(INSTALLED_LOADTEST): $(INSTALLED) requirements-loadtest.hashes
	$(HASHED_INSTALL) requirements-loadtest.hashes | $(QUIETER)
	@touch $@

loadtest: install $(INSTALLED_LOADTEST) ## A short load test of a fresh stack, with a report: inflight loadtest run $(ARGS)
	@exec $(VENV)/bin/inflight loadtest run $(ARGS)

# The third one fills the time in which they wait (tests/division.py); ARGS="-n 0" has only one, for debuggers. A
# worker that dies ends the run: xdist would begin another, and then wait for tests that nobody has.
WORKERS ?= 3
TESTS := pytest -n $(WORKERS) --max-worker-restart 0
test: install-dev ## Whether a change may be taken: every behaviour once, 10 minutes: pytest $(ARGS)
	@$(RUN) $(TESTS) $(ARGS)

test-thorough: install-dev ## All tests at their full length, containers and vLLM included: an hour or more
	@$(RUN) $(TESTS) --thorough --record $(ARGS)

runtimes: install-dev ## Test vLLM for real, over two processes, in two pools and with images too (3 GB, once)
	@$(RUN) pytest --thorough tests/stack/test_vllm_runtime.py tests/stack/test_vllm_images.py tests/stack/test_vllm_pools.py $(ARGS)

upgrade: install-dev ## The version before becomes this one, container by container, under load
	@$(RUN) pytest -n 0 --thorough -o faulthandler_timeout=0 tests/upgrade $(ARGS)

check: install-dev ## Lint, formatting and types
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy

audit: install-dev
	@$(RUN) deploy.audit

bench: install-dev ## Measurements side by side, against peers and goals: python -m benchmarks $(ARGS)
	@$(RUN) benchmarks $(ARGS)

clients: install-dev ## Real clients of others against a stack; the table goes to docs/clients.md: python -m tests.clients $(ARGS)
	@$(RUN) tests.clients $(ARGS)

bundle: install ## One file for x86_64 GPU hosts that reach no registry (PYTHON_VERSION=3.11, ARGS="--with vllm")
	@$(RUN) pip install --disable-pip-version-check --quiet --constraint requirements.lock packaging cyclonedx-python-lib
	@$(RUN) deploy.bundle --python-version $(PYTHON_VERSION) $(ARGS)

images: install-dev ## The images of docker-compose.yml without Docker, by buildah, as root: python -m deploy.images $(ARGS)
	@$(RUN) deploy.images $(ARGS)

COMPILE := $(RUN) uv pip compile pyproject.toml --universal --python-version 3.10 --quiet --no-annotate --no-header
HASHES := $(COMPILE) --group build --generate-hashes --constraint requirements.lock --output-file
# What a bundle with vLLM has, and the pip that installs it there.
VLLM := from launcher.packaging.runtimes.builds import choose_build as of; print(of("vllm", "cuda", None).requirement)
lock: install-dev ## Bring requirements.lock and *.hashes up to date with pyproject.toml (ARGS=--upgrade renews every pin)
	@cp requirements.lock requirements.lock.new
	@$(COMPILE) --extra dev --output-file requirements.lock.new $(ARGS)
	@sed -i -E '/^(cuda-|nvidia-[a-oq-z])/d' requirements.lock.new
	@{ grep '^#' requirements.lock; cat requirements.lock.new; } > requirements.lock.whole
	@rm requirements.lock.new && mv requirements.lock.whole requirements.lock
	@$(HASHES) requirements.hashes && $(HASHES) requirements-loadtest.hashes --extra loadtest
	@{ $(VENV)/bin/python -c '$(VLLM)'; echo pip; } | $(subst pyproject.toml,-,$(COMPILE)) --generate-hashes \
		--output-file requirements-vllm.hashes $(ARGS)

clean: ## Remove .venv and all caches (models stay in the data directory)
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
