# make demo   set up, compile the example model, show what happened
# make demo-quantize   int8 without data from the fold map, a table and a picture, in an environment of its own
# make test   set up, run the tests
# make lint   set up, ruff and mypy --strict
# make fuzz   a minute of the fuzz harness (docs/testing.md): make fuzz MINUTES=60 EXECUTIONS=200000 TARGET=importer SEED=1
# make test-mutations   drop every condition of legality in turn, see which test notices (docs/mutations.md)
# make test-exporters   the tests against torch's ONNX exporters, in an environment of their own
# make test-quantizers  the tests against AIMET, onnxruntime's quantizer and NNCF, in an environment of their own
# make test-browser     the reports in a headless Chromium (Debian: chromium, chromium-driver)
# make vendor           fetch the layout library of reports again
# make bench-peers      the other tools on the same models, in an environment of their own

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
EXPORTERS := $(VENV)-exporters
PEERS := $(VENV)-peers
QUANTIZERS := $(VENV)-quantizers
BROWSER := $(VENV)-browser
EXAMPLES := $(VENV)-examples
TARGET := all
EXECUTIONS := 200000
MINUTES := 1
SEED := 0
DAGRE := 3.1.3
DAGRE_SHA512 := 5f86944f0391799bed85a6563951ea949e76fd976164510ce3e2e1fee4785e8a1448b13aa7bd5b732ecc3c6cd89cd51c361fa78fe8bfa8942908c21d4274a6ae
VENDOR := backends/report/vendor
PACKAGE := ir ir/affine frontends frontends/onnx passes passes/scale_axis passes/simplify backends backends/foldmap backends/onnx backends/quantizers backends/report backends/verify commands

.PHONY: demo demo-quantize test fuzz test-mutations test-exporters test-quantizers test-browser vendor bench-peers lint format clean

demo: $(READY)
	$(BIN)/python examples/demo.py

demo-quantize: $(EXAMPLES)/.ready
	$(EXAMPLES)/bin/python examples/quantize.py

test: $(READY)
	$(BIN)/python -m pytest -q -n 2

fuzz: $(READY)
	$(BIN)/python tests/fuzz --target $(TARGET) --executions $(EXECUTIONS) --minutes $(MINUTES) --seed $(SEED)

test-mutations: $(READY)
	$(BIN)/python tests/mutation.py

test-exporters: $(EXPORTERS)/.ready
	$(EXPORTERS)/bin/python -m pytest -q -n 2 tests/exporters

test-quantizers: $(QUANTIZERS)/.ready
	$(QUANTIZERS)/bin/python -m pytest -q -n 2 tests/quantizers

test-browser: $(BROWSER)/.ready
	$(BROWSER)/bin/python -m pytest -q tests/browser

vendor:
	cd $(VENDOR) && npm pack --silent @dagrejs/dagre@$(DAGRE) && mv dagrejs-dagre-$(DAGRE).tgz dagre.tgz
	echo "$(DAGRE_SHA512)  $(VENDOR)/dagre.tgz" | sha512sum --check --quiet
	tar -xzOf $(VENDOR)/dagre.tgz package/dist/dagre.min.js > $(VENDOR)/dagre.min.js
	tar -xzOf $(VENDOR)/dagre.tgz package/LICENSE > $(VENDOR)/dagre.LICENSE
	rm $(VENDOR)/dagre.tgz

bench-peers: $(PEERS)/.ready
	$(PEERS)/bin/python benchmarks/peers.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# A strict editable install links file by file, so that mypy sees the package; it is renewed when a folder gains a file.
# torch and the peers stay out of the environment of `make test`: they are large, and hold other packages back.
$(READY): GROUP := dev
$(EXPORTERS)/.ready: GROUP := exporters
$(PEERS)/.ready: GROUP := peers
$(QUANTIZERS)/.ready: GROUP := quantizers
$(BROWSER)/.ready: GROUP := browser
$(EXAMPLES)/.ready: GROUP := examples
$(READY) $(EXPORTERS)/.ready $(PEERS)/.ready $(QUANTIZERS)/.ready $(BROWSER)/.ready $(EXAMPLES)/.ready: pyproject.toml $(PACKAGE)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "irc needs Python 3.11 or newer: make PYTHON=python3.11")'
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	$(@D)/bin/python -m pip install --quiet --group $(GROUP) --editable . --config-settings editable_mode=strict
	@touch $@

clean:
	rm -rf $(VENV) $(EXPORTERS) $(PEERS) $(QUANTIZERS) $(BROWSER) $(EXAMPLES) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
