# Everything from a fresh machine with Python 3.11 or later and nothing else.
#   make train   trains on real text, evaluates and decodes
#   make test    lints and runs every test

PYTHON ?= python3
VENV ?= .venv
RUN ?= runs/kjv
FLAGS ?=
BIN := $(VENV)/bin

.PHONY: train test lint unit clean

train: $(VENV)/.ready-train
	$(BIN)/paxlike --exp=KjvTiny --mode=train --job_log_dir=$(RUN) $(FLAGS)
	$(BIN)/paxlike --exp=KjvTiny --mode=eval --nofollow --job_log_dir=$(RUN) $(FLAGS)
	$(BIN)/paxlike --exp=KjvTiny --mode=decode --job_log_dir=$(RUN) $(FLAGS)
	$(BIN)/python benchmarks/text_compression.py $(RUN)

test: lint unit

lint: $(VENV)/.ready-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports

unit: $(VENV)/.ready-test
	$(BIN)/python -m pytest -n 2 --dist loadfile

clean:
	rm -rf $(VENV) build dist *.egg-info

$(VENV)/.ready-train: setup.py
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	test -e $(VENV)/.ready-test || $(BIN)/python -m pip install --quiet \
	  --editable '.[examples]'
	touch $@

$(VENV)/.ready-test: setup.py
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev,examples,gcs,s3]'
	touch $@
