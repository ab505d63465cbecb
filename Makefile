# `make help` lists everything. Nothing but Python 3.11, 3.12 or 3.13 and make has to be there before.

PYTHON ?= python3
VENV := .venv
# What pip is given besides: where to find smaller wheels, as in --extra-index-url URL
PIP_ARGS ?=
BIN := $(VENV)/bin
STAMP := $(VENV)/.complete
NEWEST := $(VENV)-newest
SNAKEMAKE := $(BIN)/snakemake
SMOKE := --configfile .test/config/config.yaml
REFERENCE := workflow/presets/reference.yaml
SOURCES := src tests workflow benchmarks docs/examples

# Tests and workflows start hundreds of processes; each would compile everything that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help all setup test test-numbers test-alone test-newest test-slow test-browser test-faults \
  test-cluster test-long test-reference test-peers lint format verify reference page picture paper smoke \
  dry-runs golden clean new-releases

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-16s%s\n", $$1, $$2}' $(MAKEFILE_LIST)

all: $(STAMP) ## set up, then regenerate every result that is not up to date
	$(SNAKEMAKE) --quiet all -- data || echo "going on without the studies whose data set is missing"
	$(SNAKEMAKE) all

setup: $(STAMP) ## create .venv with the pinned packages; PIP_ARGS go to pip

# Measured with Python 3.11 on x86; a wheel for a CPU has the same version as one with CUDA.
ifeq ($(shell uname -s),Linux)
define SIZES
echo "fathom: packages take 0.5 GB to download and 1.7 GB in $(VENV); where pip takes PyTorch with CUDA,"; \
echo "fathom: 3 GB and 5 GB. CUDA is not needed. To do without, stop this, and give pip the index of CPU"; \
echo "fathom: wheels that PyTorch names under Get Started: make setup PIP_ARGS='--extra-index-url URL'"
endef
else
SIZES := echo "fathom: packages take 0.5 GB to download and 1.7 GB in $(VENV)"
endif

# The stamp is written last: an install that was interrupted is done again. Python compiles a module
# when it is first imported; compiling all of them now would take a minute.
$(STAMP): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
	  || { echo "fathom needs Python 3.11, 3.12 or 3.13; set one with: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(SIZES)
	@echo "1 of 3: an environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@echo "2 of 3: packages; after the last download pip takes another minute to unpack them"
	@$(BIN)/python -m pip install $(PIP_ARGS) --no-compile --requirement requirements.txt
	@echo "3 of 3: fathom itself"
	@$(BIN)/python -m pip install --quiet $(PIP_ARGS) --no-deps --editable .
	@touch $(STAMP)

test: $(STAMP) ## set up, then run every fast test
	@$(PUT_BACK)
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# test-reference is one chain of steps. What CI runs beside it takes what it leaves.
BESIDE := nice -n 5

# Those that compare floating-point results, with the kernels of an older processor, without AVX-512,
# and two threads.
NUMBERS := $(wildcard $(patsubst %,tests/library/test_%.py,connections constraints custom_vjp init library) \
  $(patsubst %,tests/training/test_%.py,gate_noise metrics models ngrams optimizer problem \
  schemes tasks* transformer))
test-numbers: $(STAMP) ## hold numbers against the oracle under another instruction set
	ATEN_CPU_CAPABILITY=avx2 OPENBLAS_CORETYPE=Haswell OPENBLAS_NUM_THREADS=2 \
	  $(BESIDE) $(BIN)/python -m pytest $(NUMBERS)

# `--alone`: without those that compute in NumPy alone; collecting them imports what they test. Of
# those that connect to the other framework one case of each: its modules import nothing of this one.
test-alone: $(STAMP) ## tests that a missing framework can change, with each of the two alone
	for framework in mlx torch; do \
	  $(BIN)/python tests/system/without.py $$framework $(VENV)/without-$$framework && \
	  $(BESIDE) $(VENV)/without-$$framework/bin/python -m pytest --alone || exit 1; done

test-newest: ## the fast tests with the newest packages that pyproject.toml allows: 0.5 GB
	$(PYTHON) -m venv --clear $(NEWEST)
	$(NEWEST)/bin/python -m pip install --quiet $(PIP_ARGS) --editable '.[torch,mlx,workflow,dev]'
	$(NEWEST)/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# Further cases of the fast tests.
SLOW_CASES := $(BIN)/python -m pytest -m slow -n 2 --dist loadfile --durations 15

test-slow: $(STAMP) ## examples of docs/extending, processes that preload, whole workflows
	$(BIN)/python -m pytest tests/slow -n 2 --dist loadfile --durations 15
	$(SLOW_CASES)

# A folder of their own, seen by these tests alone. What else they import is in the environment.
PEERS := $(VENV)/peers
$(PEERS)/.complete: tests/peers/peers.txt $(STAMP)
	rm -rf $(PEERS)
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) --no-compile --no-deps --target $(PEERS) \
	  --requirement $<
	@touch $@

# And the sides of benchmarks/steps.py that wrap our sub-layers in these packages; and kernels for GPUs
# in Triton's interpreter.
test-peers: $(PEERS)/.complete ## compare with released models, attach to them, interpret CUDA kernels: 250 MB
	PYTHONPATH=$(PEERS) PEERS_ARE_THERE=1 $(BIN)/python -m pytest tests/peers -rs
	PYTHONPATH=$(PEERS) $(BIN)/python -m pytest tests/system/test_bench.py tests/slow/test_bench.py -rs \
	  -k "pypi or released"
	PYTHONPATH=$(PEERS) $(BIN)/python -m pytest tests/library/test_triton.py -rs

NEWEST_PEERS := $(VENV)/newest-peers
new-releases: $(STAMP) ## list modules of the newest transformers and mlx-lm to read: 20 MB
	rm -rf $(NEWEST_PEERS)
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) --no-compile --no-deps --target $(NEWEST_PEERS) \
	  transformers mlx-lm
	$(BIN)/python tests/peers/new_releases.py $(NEWEST_PEERS)

test-browser: $(STAMP) ## open the page in chromium, where that is installed
	$(BIN)/python -m pytest tests/browser

test-faults: $(STAMP) ## kill trainings and workflows, damage files, fill a disk
	$(BIN)/python -m pytest tests/faults -n 2 --dist loadfile

test-cluster: $(STAMP) ## run the workflow on a Slurm cluster of this machine, where Slurm is installed
	$(BIN)/python -m pytest tests/cluster -rs

test-long: $(STAMP) ## test-slow, test-browser, test-faults and test-cluster as CI runs them
	$(BESIDE) $(BIN)/python -m pytest tests/slow tests/browser tests/faults tests/cluster -n 2 \
	  --dist loadfile --no-loadscope-reorder -rs --durations 15
	$(BESIDE) $(SLOW_CASES)

test-reference: $(STAMP) ## render results/reference elsewhere, compare, replay its runs
	$(BIN)/python -m pytest tests/reference --durations 5

lint: $(STAMP) ## style of Python and Snakemake files; whether schema and tables are current
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/fathom schema --check
	$(SNAKEMAKE) --lint

format: $(STAMP) ## rewrite Python and Snakemake files in the project's style
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/snakefmt Snakefile workflow

verify: $(STAMP) ## check every result against what it was made from
	$(BIN)/fathom verify

# Bundles are checked as they are imported. One that is refused is named, also in the report, and stops
# nothing but the last step, which records the hashes of what was made. Runs that today's code has not
# repeated are replayed, and then all else is made anew: what is no longer made would stay, and be recorded.
# REPLAY is another command in CI, which repeats a sample: tests/reference/replay_sample.py. ALSO are targets
# besides the reports, as in ALSO="page paper": one start of the workflow plans them all.
REPLAY = $(BIN)/fathom replay --config config.yaml --config $(REFERENCE) --jobs 2

# Until the hashes are recorded, the former result is in ASIDE: if `make reference` was killed or failed,
# the next start puts it back. RENDERING holds the process id of a make that is still at it.
ASIDE := results/.reference
RENDERING := $(ASIDE).pid
IS_RENDERED := kill -0 $$(cat $(RENDERING) 2>/dev/null || echo none) 2>/dev/null
define PUT_BACK
rm -rf $(ASIDE).old; [ ! -d $(ASIDE) ] || $(IS_RENDERED) || { for part in $$(ls $(ASIDE)); do \
  rm -rf results/reference/$$part && mv $(ASIDE)/$$part results/reference/ || exit 1; done; rmdir $(ASIDE); }
endef
reference: $(STAMP) ## render results/reference from its bundles alone
	@! $(IS_RENDERED) || { echo "another make renders results/reference"; exit 1; }
	@$(PUT_BACK)
	@mkdir -p $(ASIDE); echo $$PPID > $(RENDERING)
	-$(BIN)/fathom bundle import results/reference/bundles/*.tar.xz --replace \
	  --config config.yaml --config $(REFERENCE)
	$(REPLAY) || echo "going on without the runs that cannot be replayed"
	@cd results/reference && for part in config.json figures studies tables SHA256SUMS *.md; do \
	  [ ! -e $$part ] || mv $$part ../.reference/ || exit 1; done
	$(SNAKEMAKE) report $(ALSO) --configfile $(REFERENCE) --config train=false
	$(BIN)/python benchmarks/record.py results/reference
	@mv $(ASIDE) $(ASIDE).old; rm -rf $(ASIDE).old $(RENDERING)

# Of the runs that `make reference` has imported.
page: $(STAMP) ## results/reference/index.html, the page of the reference
	$(SNAKEMAKE) page --configfile $(REFERENCE) --config train=false

PICTURE := docs/images/page.png
picture: page ## docs/images/page.png, README's picture of that page; needs chromium
	chromium --headless --no-sandbox --hide-scrollbars --virtual-time-budget=4000 --window-size=1200,900 \
	  --screenshot=$(PICTURE) 'file://$(CURDIR)/results/reference/index.html'
	$(BIN)/python -c "from PIL import Image; p = '$(PICTURE)'; Image.open(p).convert('RGB').quantize( \
	  256, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(p, optimize=True)" # keeps hues

paper: $(STAMP) ## results/reference/fathom.pdf, the paper of the reference
	$(SNAKEMAKE) paper --configfile $(REFERENCE) --config train=false

A_CELL := depth-mlx/3L/mhc/torch/seed0
smoke: $(STAMP) ## every rule on a tiny grid, into results/smoke
	$(SNAKEMAKE) all results/smoke/figures/cells/$(A_CELL)/loss.png --workflow-profile ci $(SMOKE)

# The smoke preset is what `make smoke` runs. The scale preset has every cell of the reference.
PLAN := $(BIN)/python tests/workflow/dry_run.py
dry-runs: $(STAMP) ## plan the other presets, one on a cluster; each has to train all of its cells
	$(PLAN)
	$(PLAN) --configfile workflow/presets/paper.yaml
	$(BIN)/fathom fetch python_sources # a plan refuses a study whose own text is not there
	$(PLAN) --configfile $(REFERENCE) workflow/presets/scale.yaml
	$(PLAN) --configfile workflow/presets/paper.yaml --workflow-profile slurm

golden: $(STAMP) ## renew tests/training/spec_hashes.csv after a change of specs that is intended
	$(BIN)/python tests/training/spec_hashes.py

# Not what was carried here: imported runs, and the reference in results/reference.
RESULTS := results results/smoke results/paper
MADE := runs cuts tables figures logs benchmarks studies replays *.md index.html fathom.pdf config.json
clean: ## delete results (not the imported ones) and what Snakemake remembers
	rm -rf $(foreach folder,$(RESULTS),$(addprefix $(folder)/,$(MADE))) \
	  results/compare results/judge report.html report.zip .snakemake
	@rmdir results/smoke results/paper 2>/dev/null || true
