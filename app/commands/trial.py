"""Loads of models for `nereid check`: as a server would do it, but in this process and on the CPU."""

import ast
import glob
import logging
from pathlib import Path
from typing import Final

from app.core.config.normalise import ENSEMBLE, normalise
from app.core.config.validation import validate
from app.core.errors import InferError, invalid_arg
from app.settings.settings import ServerSettings
from backends import executes_python, find_backend, hosted_backend, is_custom, library_file, runs_elsewhere
from backends.base import Instance, Model
from deployments.manager.catalog import Candidate, Catalog
from deployments.model_store.layout import ModelEntry
from deployments.model_store.model_files import read_labels

_LOADED: Final = ("onnxruntime", "pytorch")
"""Backends whose models are loaded: they execute no code of a user in doing so."""


class Trial:
    """The models of repositories, and what is wrong with each."""

    def __init__(self, settings: ServerSettings) -> None:
        logging.disable(logging.ERROR)  # what is logged on the way is in the verdicts
        self._catalog = Catalog(settings, b"")
        self._catalog.gpus = tuple(range(len(glob.glob("/dev/nvidia[0-9]*"))))
        self.models: dict[str, ModelEntry] = self._catalog.scan()
        self._faults: dict[str, str] = {}

    def fault(self, name: str) -> str:
        """Return why a model could not be served, "" when it could."""
        if name not in self._faults:
            self._faults[name] = ""  # for an ensemble that calls itself
            try:
                self._check(self._catalog.candidate(name, None))
            except InferError as error:
                self._faults[name] = error.with_code()
            except Exception as error:
                self._faults[name] = f"Internal: {type(error).__name__}: {error}"
        return self._faults[name]

    def _check(self, candidate: Candidate) -> None:
        if candidate.config.platform == ENSEMBLE:
            validate(candidate.config, self._catalog.gpus)
            self._check_steps(candidate)
            return
        for version in candidate.versions:
            candidate.check(version)
            self._load(candidate, version)

    def _check_steps(self, candidate: Candidate) -> None:
        steps = [step.model_name for step in candidate.config.ensemble_scheduling.step]
        missing = sorted({step for step in steps if step not in self.models})
        if missing:
            text = f"ensemble {candidate.name} contains models that are not available or ambiguous:"
            raise invalid_arg(f"{text} {', '.join(missing)}")
        for step in steps:
            if self.fault(step):
                raise invalid_arg(f"ensemble '{candidate.name}' depends on '{step}' which is not valid.")

    def _load(self, candidate: Candidate, version: int) -> None:
        """Complete and validate the configuration, and load the model if that executes no code of a user."""
        spec, config = candidate.template, normalise(candidate.config, self._catalog.gpus)
        model = Model(config, version, candidate.entry.directory, spec.settings(config.backend))
        if config.backend == "python" and not is_custom("python", spec.backend_path):
            _check_code(model.artifact("model.py"))
        folders = (model.version_directory, model.directory)
        where = (config.backend, spec.backend_path, config.runtime, folders)
        elsewhere = runs_elsewhere(*where, model.backend_config)
        kind = hosted_backend(config.backend) if elsewhere else find_backend(*where)
        runs_code = executes_python(*where) or config.platform == "torch_aoti"  # native code
        runs_code |= library_file(*where) is not None
        loads = config.backend in _LOADED and not (runs_code or spec.origin or elsewhere)
        if loads and spec.auto_complete:
            model.config = normalise(kind.auto_complete(model), self._catalog.gpus)
        if loads or (config.input and config.output):
            validate(model.config, self._catalog.gpus)
        read_labels(candidate.entry, model.config)
        if loads:
            backend = kind()
            backend.initialize(model.backend_config)
            backend.model_initialize(model)
            instance = Instance(model, f"{model.name}_0")
            backend.instance_initialize(instance)
            backend.instance_finalize(instance)


def _check_code(path: Path) -> None:
    """Check the code of a Python model without running it.

    Raises:
        InferError: INVALID_ARG for code that is no Python, or has no model.
    """
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError) as error:
        raise invalid_arg(f"{path}: {type(error).__name__}: {error}") from None
    nodes = list(ast.walk(tree))
    names = {node.name for node in nodes if isinstance(node, ast.ClassDef)}
    names |= {node.id for node in nodes if isinstance(node, ast.Name)}
    names |= {
        each.asname or each.name for node in nodes if isinstance(node, ast.ImportFrom) for each in node.names
    }
    if not names & {"TritonPythonModel", "*"}:
        raise invalid_arg(f"{path} has no class 'TritonPythonModel'")
