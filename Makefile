# `make demo`, `make test`, `make lint` and `make docs` set up what they need. STACK=onedl in front uses the other one;
# tools/misc/setup_env.sh has more such variables.
STACK ?= openmmlab
ENV := $(if $(filter onedl,$(STACK)),.venv-onedl,.venv)
# Caches of matplotlib and yapf go here: nothing is written outside the checkout but the caches of pip and uv.
RUN = MPLCONFIGDIR="$(CURDIR)/$(ENV)/cache" XDG_CACHE_HOME="$(CURDIR)/$(ENV)/cache" $(ENV)/bin/python

# A process a core, each with one thread unless OMP_NUM_THREADS says otherwise.
PYTEST = OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(RUN) -m pytest --basetemp=$(ENV)/tmp -n auto --dist loadfile

# The demo and the tests run on the CPU. Goals that end in -gpu see the GPUs.
ifeq ($(filter %-gpu,$(MAKECMDGOALS)),)
export CUDA_VISIBLE_DEVICES :=
endif

.PHONY: demo test test-all test-alone test-shuffled stock test-clusters test-gpu bench-gpu canary lint docs numbers env

demo: env
	$(RUN) -m lab demo --work-dir work_dirs/demo-$(STACK)

test: env  # what a contributor runs: without the slow ones; TESTS are files or folders, all if not given
	$(PYTEST) -m "not slow and not gpu" $(TESTS)

test-all: env
	$(PYTEST) -m "not gpu" $(TESTS)

test-alone: env  # each file by itself: no test needs another one before it
	for file in $$(git ls-files 'tests/*test_*.py'); do \
	  $(RUN) -m pytest -q -m "not slow and not gpu" $$file || [ $$? = 5 ] || exit 1; done  # 5: no fast test is in it

test-shuffled: env  # in random orders, by pytest-randomly: no test disturbs another
	$(PYTEST) -m "not slow and not gpu" -p randomly

stock: env  # swaps the backbone of all configs of mmdet and mmseg: an hour on two cores
	$(PYTEST) -rs -k "$(FAMILIES)" lab/test_stock_configs.py

# Minutes on two cores, since Ray starts many processes.
test-clusters: env
	$(ENV)/bin/pip install --quiet -e '.[lab]'
	RAY_USAGE_STATS_ENABLED=0 $(RUN) -m pytest --basetemp=$(ENV)/tmp tests/examples/test_clusters.py \
	  tests/lab/test_clusters.py

test-gpu: env  # one process: the tests share the GPU
	$(RUN) -m pytest --basetemp=$(ENV)/tmp -rs tests/gpu

ON_GPU := --device cuda --batch-sizes 1 8 16 --warmup 3 --rounds 20

bench-gpu: env
	$(RUN) tools/analysis_tools/benchmark.py cpvt_mm cpvt_mm:with_cp=selective timm mmseg $(ON_GPU) \
	  --sizes 224 512 800x1216 --dtypes tf32 bf16 --out-dir work_dirs/benchmark-gpu
	$(RUN) tools/analysis_tools/benchmark.py cpvt_mm --compile static $(ON_GPU) \
	  --sizes 224 800x1216 --dtypes fp32 tf32 bf16 --out-dir work_dirs/benchmark-gpu-compiled

# The newest of everything that pyproject.toml allows, in a new environment; its last lines say what was tested, and when.
canary: ENV := .venv-canary
canary:
	rm -rf $(ENV)
	tools/misc/setup_env.sh $(STACK) $(ENV)
	$(PYTEST) -m "not slow and not gpu"
	@$(ENV)/bin/python -m pip freeze | grep -iE '^(torch|torchvision|onedl.*|mm.*|transformers|timm|numpy)=='
	@$(ENV)/bin/python -V; date +%F

lint: env
	$(RUN) -m ruff check
	$(RUN) -m mypy

env:
	tools/misc/setup_env.sh $(STACK) $(ENV)

docs: .venv-docs/ready
	MPLCONFIGDIR="$(CURDIR)/.venv-docs/cache" .venv-docs/bin/python -m sphinx -W --keep-going docs docs/_build/html
	@echo 'Open docs/_build/html/index.html.'

numbers:  # for each table of README and docs the command that makes it
	@$${PYTHON:-python3} -m lab numbers_of_docs

# mmcv, mmdet and mmsegmentation are not needed for this.
.venv-docs/ready: pyproject.toml
	$${PYTHON:-python3} -m venv .venv-docs
	.venv-docs/bin/python -m pip install -q -U pip
	.venv-docs/bin/python -m pip install -q -e . --group docs
	touch $@
