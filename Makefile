# make demo    set up, run a sample file through the default model, show the result
# make test    set up, run the tests
# make check   set up, lint and check types
# make shapes  set up, train the small vision model of the samples anew and test it
#
# Needs only make and python3 (3.11 or later). PYTHON=/path/to/python3 picks another one,
# BACKEND=cpu|cuda12|cuda13 another MLX backend than the one found.

SHELL := /bin/sh
comma := ,
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$p"; break; }; \
	done)

# Metal comes with mlx itself. `nvidia-smi` says which CUDA the driver can run.
BACKEND ?= $(shell \
	if [ "$$(uname -s)" = Darwin ]; then exit; fi; \
	case "$$(nvidia-smi 2>/dev/null | sed -n 's/.*CUDA[A-Za-z ]*Version: *\([0-9]*\).*/\1/p')" in \
	(1[3-9]*) echo cuda13 ;; (12*) echo cuda12 ;; (*) echo cpu ;; esac)

SHOW = import pyarrow.parquet as pq; \
	rows = pq.read_table("out/questions.parquet", columns=["row", "text", "error_message"]).to_pylist(); \
	[print("%3d  %s" % (r["row"], " ".join((r["text"] or r["error_message"] or "").split())[:90])) \
	for r in rows[:8]]

.PHONY: demo test check shapes setup
.DEFAULT_GOAL := setup

demo: setup
	@mkdir -p out
	$(BIN)/batchrun samples/questions.jsonl -o out/questions.parquet
	@echo; echo "First rows of out/questions.parquet:"
	@$(BIN)/python -c '$(SHOW)'

test: setup
	$(BIN)/python -m pytest -q

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

shapes: setup
	$(BIN)/python -m samples.shapes.train
	$(BIN)/python -m samples.shapes.evaluate

setup: $(STAMP)

$(STAMP): pyproject.toml
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo "batchrun needs Python 3.11 or later: install it, or say where it is with make PYTHON=/path/to/python3"; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) has no venv module: install it (Debian, Ubuntu: apt install python3-venv)"; exit 1; }
	@echo "Setting up $(VENV) with $(PYTHON) and MLX for $(or $(BACKEND),Metal); this takes a minute or two, once."
	@"$(PYTHON)" -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[$(if $(BACKEND),$(BACKEND)$(comma))dev]"
	@touch $(STAMP)
