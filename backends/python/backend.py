"""Backend `python`: a model is a class `TritonPythonModel` in model.py.

Triton starts a stub process for each instance. Here the replica process executes a model's only instance
itself, so that nothing crosses a process boundary between the scheduler and the model. Several instances, and
those of a model with an environment of its own, have worker processes, of that environment: one each or, with
the parameter INSTANCES_SHARE_PROCESS, one for all with a thread each. Interface and error texts are Triton's.
"""

import json
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from google.protobuf import json_format
from tritonclient.grpc import model_config_pb2 as mc

import backends
from app.core.config.json import config_to_json
from app.core.errors import invalid_arg
from app.core.installed.installation import SERVER_PYTHON
from app.core.installed.own_modules import import_own
from backends.base import Begun, Instance, Model, Request
from backends.declared import with_completed
from backends.python.api import metrics
from backends.python.api.errors import loading_failed
from backends.python.execution import loader
from backends.python.execution.event_loop_safety import is_safe_on_event_loop
from backends.python.execution.execution import Execution, completed
from backends.python.execution.instance import PythonInstance
from backends.python.execution.reshaping import Reshaped
from backends.python.execution.statelessness import is_stateless
from backends.python.movable import Movable
from backends.python.source import check_model_source
from backends.python.worker import forked
from backends.python.worker.backend import WorkerBackend, completed_there

_INVALID_NAME: Final = re.compile(r"""[;|&$`<>()\[\]{}\\"'*?~#!]""")
"""INVALID_CHARS of Triton's Python backend, which runs a shell command with the model's name in it."""


class PythonBackend(WorkerBackend):
    """Executes Python models."""

    def model_initialize(self, model: Model) -> None:
        super().model_initialize(model)
        forked.follow()
        if _INVALID_NAME.search(model.name):
            raise invalid_arg("Invalid stub name: contains invalid characters")
        value = model.parameter("FORCE_CPU_ONLY_INPUT_TENSORS", "yes")
        if value not in ("yes", "no"):
            raise invalid_arg(f"Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: {value}")

    def instance_initialize(self, instance: Instance) -> None:
        model = instance.model
        described = _described(model, instance)
        if model.interpreter is not None and not _may_move(model, described):
            self.supervise(instance, described)
            return
        execution = Execution(described)
        execution.deliver_all = instance.deliver_all
        instance.state = execution
        if model.interpreter is not None:
            start = partial(self.start_supervisor, instance, described)
            instance.state = Movable(execution, instance, start)

    def readiness_varies(self, instance: Instance) -> bool:
        state = instance.state
        return not isinstance(state, Execution) or hasattr(state.model, "is_ready")

    def runs_on_event_loop(self, instance: Instance) -> bool:
        execution = _execution_here(instance)
        return execution is not None and is_safe_on_event_loop(Path(execution.instance.file).read_bytes())

    def may_call_models(self, instance: Instance) -> bool:
        execution = _execution_here(instance)
        source = b"" if execution is None else Path(execution.instance.file).read_bytes()
        return any(part in source for part in (b".exec", b"async"))

    def instance_execute(self, instance: Instance, requests: Sequence[Request]) -> None:
        instance.state.execute(_reshaped(instance, requests), instance)

    def instance_begin(self, instance: Instance, requests: Sequence[Request]) -> Begun | None:
        state = instance.state
        if isinstance(state, Execution):
            return None
        begun: Begun | None = state.begin(_reshaped(instance, requests), instance)
        return begun

    def metrics(self) -> list[Any]:
        return [*metrics.snapshot(), *super().metrics()]

    @classmethod
    def inspect(cls, model: Model) -> bool:
        inspection = _inspection_of(model.common_file) if model.common_file else ""
        if inspection:
            import_own(inspection).inspect(model)
        else:
            check_model_source(model.common_file or model.artifact("model.py"))
        return False

    @classmethod
    def auto_complete(cls, model: Model) -> mc.ModelConfig:
        returned = _completed(model)
        if returned is None:
            return model.config
        try:
            return _merged(model.config, returned)
        except Exception as error:
            raise loading_failed(error, loader.OUR_FOLDER) from error


def _inspection_of(file: Path) -> str:
    """Return the module beside a file of ours that checks models without running them; "" for others."""
    root = next((Path(root) for root in backends.__path__ if file.is_relative_to(root)), None)
    return "" if root is None else ".".join(("backends", *file.parent.relative_to(root).parts, "inspection"))


def _may_move(model: Model, described: PythonInstance) -> bool:
    """Whether an instance may execute in the replica at first, though its model has several."""
    config = model.config
    one_by_one = config.model_transaction_policy.decoupled or config.HasField("sequence_batching")
    here = model.interpreter == SERVER_PYTHON and described.kind == "CPU" and not one_by_one
    return here and is_stateless(Path(described.file).read_bytes())


def _execution_here(instance: Instance) -> Execution | None:
    state = instance.state
    return state.execution if isinstance(state, Movable) else state if isinstance(state, Execution) else None


def _reshaped(instance: Instance, requests: Sequence[Request]) -> Sequence[Request]:
    signature = instance.model.signature
    return [Reshaped(request, signature) for request in requests] if signature.reshaped else requests


def _completed(model: Model) -> dict[str, Any] | None:
    described = _described(model)
    if model.interpreter is None:
        return completed(described)
    there: dict[str, Any] | None = completed_there(model, described)
    return there


def _described(model: Model, instance: Instance | None = None) -> PythonInstance:
    """Return the description by which the code of a model, or of one instance of it, is loaded."""
    file = model.common_file or model.artifact("model.py").absolute()
    config = json.dumps(config_to_json(model.config))
    about = (model.name, model.version_text, str(model.directory.absolute()), str(file), config)
    settings = model.backend_config if model.common_file else None
    ours = bool(_inspection_of(file))
    if instance is None:
        return PythonInstance(*about, name=model.name, backend_config=settings, ours=ours)
    outputs = model.signature.outputs
    return PythonInstance(
        *about,
        name=instance.name,
        kind=instance.kind,
        device_id=instance.device_id,
        outputs=tuple(output.name for output in outputs),
        states=tuple(state.output_name for state in model.config.sequence_batching.state),
        bf16=tuple(output.name for output in outputs if output.datatype == "BF16"),
        decoupled=model.config.model_transaction_policy.decoupled,
        backend_config=settings,
        ours=ours,
    )


def _merged(declared: mc.ModelConfig, returned: dict[str, Any]) -> mc.ModelConfig:
    """Return the configuration with the fields that `auto_complete_config` may change."""
    parsed = json_format.ParseDict(returned, mc.ModelConfig())
    config = with_completed(declared, parsed)
    if parsed.HasField("dynamic_batching") and not config.WhichOneof("scheduling_choice"):
        config.dynamic_batching.CopyFrom(parsed.dynamic_batching)
    return config
