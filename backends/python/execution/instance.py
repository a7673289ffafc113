"""Description of a Python model or instance in plain values, which are sent to worker processes too."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True)
class PythonInstance:
    """One instance of a Python model, or the model alone for the completion of its configuration.

    Attributes:
        model_name: the model.
        version: its version.
        directory: the model's directory, absolute.
        file: the file of class `TritonPythonModel`, absolute, checked to be inside `directory` unless it is a
            Python-based backend's.
        config: the configuration as JSON.
        name: the instance's name, as Triton names them.
        kind: "CPU", "GPU" or "MODEL".
        device_id: CUDA ordinal for kind GPU.
        outputs: names in the order of the configuration.
        states: names of the outputs that are a sequence's state.
        bf16: names of the outputs that the configuration declares BF16.
        decoupled: whether a request has any number of responses.
        backend_config: the settings of `--backend-config` for a Python-based backend; None for Python models.
        apart: whether a worker process executes it, which sends the responses of a batch before the model
            executes another.
        ours: whether the file is one of our modules, which finds others of them by their plain names.
    """

    model_name: str
    version: str
    directory: str
    file: str
    config: str
    name: str
    kind: str = "CPU"
    device_id: int = 0
    outputs: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    bf16: tuple[str, ...] = ()
    decoupled: bool = False
    backend_config: dict[str, str] | None = None
    apart: bool = False
    ours: bool = False

    @property
    def returned(self) -> tuple[str, ...]:
        """Names of all tensors that the model may return."""
        return self.outputs + self.states

    def initialize_arguments(self) -> dict[str, str]:
        """Return the argument of `initialize`; `model_repository` is the model's directory, as in Triton.

        Python-based backends also find their settings there, as JSON, which Triton does not give them.
        """
        settings = {} if self.backend_config is None else {"backend_config": json.dumps(self.backend_config)}
        return settings | {
            "model_config": self.config,
            "model_instance_kind": self.kind,
            "model_instance_device_id": str(self.device_id),
            "model_instance_name": self.name,
            "model_repository": self.directory,
            "model_version": self.version,
            "model_name": self.model_name,
        }
