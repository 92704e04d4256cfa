# `make demo`, `make test`, `make lint` and `make docs` set up what they need; STACK=onedl in front uses the other stack.
STACK ?= openmmlab
ENV := $(if $(filter onedl,$(STACK)),.venv-onedl,.venv)
# Caches of matplotlib and yapf go here: nothing is written outside the checkout but pip's cache.
RUN := MPLCONFIGDIR=$(CURDIR)/$(ENV)/cache XDG_CACHE_HOME=$(CURDIR)/$(ENV)/cache $(ENV)/bin/python

# A process a core, each with one thread unless OMP_NUM_THREADS says otherwise.
PYTEST = OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(RUN) -m pytest --basetemp=$(ENV)/tmp -n auto --dist loadfile

# The demo and the tests run on the CPU, and .venv gets mmcv without CUDA; for a GPU call setup_env.sh yourself.
export CUDA_VISIBLE_DEVICES :=

.PHONY: demo test test-all lint docs env

demo: env
	$(RUN) tools/misc/demo.py --work-dir work_dirs/demo-$(STACK)

test: env  # what a contributor runs: without the slow ones
	$(PYTEST) -m "not slow"

test-all: env
	$(PYTEST)

lint: env
	$(RUN) -m ruff check
	$(RUN) -m mypy

env:
	tools/misc/setup_env.sh $(STACK) $(ENV)

docs: .venv-docs/ready
	MPLCONFIGDIR=$(CURDIR)/.venv-docs/cache .venv-docs/bin/python -m sphinx -W --keep-going docs docs/_build
	@echo 'Open docs/_build/index.html.'

# mmcv is not built for this.
.venv-docs/ready: requirements/docs.txt
	$${PYTHON:-python3} -m venv .venv-docs
	.venv-docs/bin/python -m pip install -q -r requirements/docs.txt
	touch $@
