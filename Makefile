# The list of commands. Every target makes or updates .venv first (tools/setup.py); with nothing to do that takes a moment.
.DEFAULT_GOAL := help
.PHONY: help setup eval gate report reference test test-servers check fix bench bench-report audit kernels ci lock readme clean
MAKEFLAGS += --no-print-directory

K     ?= 7
QUANT ?= nvfp4
BIN   := .venv/bin

# The first Python new enough; PYTHON=... names another.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo "$$p" && break; done)

# Some images set VENV to a folder of theirs: outside the command line only our own words count.
ifeq ($(filter auto own system,$(VENV)),)
  ifeq ($(origin VENV),command line)
    $(error VENV=$(VENV) is none of auto, own, system)
  endif
  override VENV := auto
endif

# What --option VALUE becomes of an optional variable; nothing where it is empty.
option = $(if $($(2)),$(1) '$($(2))')
# The stored run that RUN= names, or the newest one.
run_of = $(or $(RUN),$(patsubst %/run.json,%,$(firstword $(shell ls -t runs/*/run.json 2>/dev/null))))
need_run = @test -n '$(run_of)' || { echo 'no stored run in runs/: make eval makes one' >&2; exit 2; }

help: ## This list
	@echo 'make eval K=7 QUANT=nvfp4 [LIMIT=n] [TASK=name] [DRAFT=name] [DATA=file] [BATCH=n] [THREADS=n] [TP=n] [ARGS="..."]'
	@echo '          of a server: ENGINE=atom|sglang|vllm|trtllm|llamacpp|openai [BASE_URL=http://HOST:PORT/v1] [MODEL=name]'
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo 'Any target: VENV=system uses the torch that python3 has, VENV=own installs one, VENV=auto (default) looks.'

setup: ## Make .venv with pinned versions; safe to interrupt, quick when there is nothing to do
	@python='$(PYTHON)'; test -n "$$python" || { \
		echo "setup: Python 3.11 or newer is needed, python3 is $$(python3 -V 2>&1 | tail -n 1)" >&2; \
		echo 'fix: install one, or PYTHON=/path/to/it make setup' >&2; exit 2; }; \
	"$$python" tools/setup.py --venv $(VENV)

# make itself can only exit 0 or 2. Anything but a pass must stop `make eval && ...`, so an inconclusive run (3)
# ends as make's 2, like a failed one (1); the line printed last, and make's own "Error N", name evalkit's code.
# Scripts that tell 1 from 3 call .venv/bin/evalkit run.
eval: setup ## Run one setting, judge it, write its report: K=0..7, QUANT=float32|bf16|fp8|nvfp4
	@$(BIN)/evalkit run --k '$(K)' --quant '$(QUANT)' $(call option,--limit,LIMIT) $(call option,--task,TASK) \
		$(call option,--draft,DRAFT) $(call option,--data,DATA) $(call option,--batch,BATCH) \
		$(call option,--threads,THREADS) $(call option,--tp,TP) $(call option,--engine,ENGINE) \
		$(call option,--base-url,BASE_URL) $(call option,--model,MODEL) $(ARGS); code=$$?; \
	case $$code in 0) word=pass;; 1) word=fail;; 2) word=error;; 3) word=inconclusive;; *) word=interrupted;; esac; \
	echo "evalkit exit code: $$code ($$word)"; exit $$code

# Like eval: make ends with 0 on a pass and 2 on anything else; the last line names evalkit's own code.
SPEC ?= docs/examples/gradeschool.yaml
gate: setup ## Run what is missing of the embedded model's sweep and judge it (SPEC=file), or one stored run (RUN=id)
	@if [ -n '$(RUN)' ]; then $(BIN)/evalkit gate '$(RUN)' $(ARGS); \
	else $(BIN)/evalkit gate '$(SPEC)' --run-missing $(ARGS); fi; code=$$?; \
	case $$code in 0) word=pass;; 1) word=fail;; 2) word=error;; 3) word=inconclusive;; *) word=interrupted;; esac; \
	echo "evalkit exit code: $$code ($$word)"; exit $$code

report: setup ## Run the published sweep and write its page in reports/; RUN=id: the page of one stored run
ifneq ($(RUN),)
	@$(BIN)/evalkit report '$(RUN)' $(ARGS)
else
	@$(BIN)/python tools/report.py $(ARGS)
endif

reference: setup ## Train the embedded model, record its golden and card (90 minutes); goes on where it was stopped
	@$(BIN)/python -m evalkit.reference $(ARGS)

test: setup ## All tests that need neither a GPU nor many minutes
	@$(BIN)/python -m pytest -q -m 'not slow and not gpu' $(ARGS)

test-servers: setup ## Install vLLM, llama.cpp and a small real model in build/servers/ (4 GB) and hold evalkit against them
	@$(BIN)/python tools/test_servers.py $(if $(DATA),--data '$(DATA)') $(ARGS)

check: setup ## Lint, format and types, changing nothing
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/pyright --warnings

fix: setup ## Mend what ruff can mend; bring the generated parts of README.md and docs up to date
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format
	@$(BIN)/python tools/readme.py
	@$(BIN)/python -m evalkit.spec.document
	@$(BIN)/python tools/quant_page.py

bench: setup ## Tokens a second against transformers and a plain loop, by K, batch, quant mode and Mono; the client's CPU time
	@$(BIN)/python -m engine.bench $(ARGS)
	@$(BIN)/python -m evalkit.backends.http.bench

bench-report: setup ## How soon the sweep's page and one of 100,000 samples are written and open; ARGS=--write: docs/report.md
	@$(BIN)/python -m tools.bench_report $(ARGS)

audit: setup ## Simulate the statistical rules' error rates and write docs/audit.md; fails where one is off
	@$(BIN)/python -m evalkit.audit $(ARGS)

kernels: setup ## Compile every kernel for gfx950 and sm_90 without a GPU and write docs/kernels.md; fails on a fault
	@$(BIN)/python -m engine.kernels.aot --write $(ARGS)

ci: check test ## What must hold before a change lands

lock: setup ## Pin again what pyproject.toml asks for (ARGS=--upgrade: to the newest that fits)
	@$(BIN)/python tools/lock.py $(ARGS)

readme: setup ## Run the README's command and put its real output there
	@$(BIN)/python tools/readme.py --record

clean: ## Remove .venv and caches; stored runs and training state stay
	@rm -rf .venv .ruff_cache .pytest_cache .hypothesis dist *.egg-info
	@find engine evalkit tasks tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
