"""Base of packaged backends that map named arrays to named arrays: requests are joined and split for them.

An environment needs numpy and the framework, and none of our packages. With the model's parameter
INSTANCES_SHARE_PROCESS, the instances are threads of one process, and may share what one of them has loaded.
"""

import json
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from weakref import WeakSet

import numpy as np
import triton_python_backend_utils as pb_utils

from app.core.files.paths import path_inside
from app.core.system.cpus import available_cpus
from backends.packaged.inspection import undeclared

Array = Any


def file_of(directory: str, name: str) -> str:
    """Return the path of a file in a version's directory.

    Raises:
        TritonModelException: its name leads out of the model's directory.
    """
    root, version = os.path.split(directory)
    path = path_inside(root, name, version)
    if path is None:
        model = os.path.basename(root)
        text = f"'{os.path.join(directory, name)}' escapes the directory of model '{model}'"
        raise pb_utils.TritonModelException(text)
    return str(path)


class ArrayModel:
    """One instance of a model; subclasses write `load` and `run`.

    Attributes:
        config: the configuration, as JSON has it.
        name: the model's.
        directory: the version's directory.
        outputs: the names of the outputs.
        kind: "CPU", "GPU" or "MODEL".
        device_id: CUDA ordinal for kind GPU.
    """

    _loading: ClassVar[threading.Lock] = threading.Lock()
    _loaded: ClassVar["WeakSet[ArrayModel]"] = WeakSet()

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the model and run it once, because a first run takes longer."""
        self.config: dict[str, Any] = json.loads(args["model_config"])
        self.name = args["model_name"]
        self.directory = os.path.join(args["model_repository"], args["model_version"])
        self.inputs = [tensor["name"] for tensor in self.config["input"]]
        self.outputs = [tensor["name"] for tensor in self.config["output"]]
        self.kind, self.device_id = args["model_instance_kind"], int(args["model_instance_device_id"])
        with self._loading:
            other = next((each for each in self._loaded if each._place() == self._place()), None)
            self.load() if other is None else self.share(other)
            self._loaded.add(self)
        try:
            self.run({tensor["name"]: self._zeros(tensor) for tensor in self.config["input"]})
        except Exception as error:  # -1 is taken for 1, which may be no size that the model has
            pb_utils.Logger.log_info(f"'{self.name}' did not run with inputs of zeros: {error}")

    def load(self) -> None:
        """Load the model's files."""
        raise NotImplementedError

    def require_tensors(self) -> None:
        """Refuse a configuration without inputs or outputs, for a framework that completes none.

        Raises:
            TritonModelException: it has none.
        """
        if not (self.inputs and self.outputs):
            raise pb_utils.TritonModelException(undeclared(self.name))

    def share(self, other: Any) -> None:
        """Take what is needed from an instance of this process on the same device, which may be executing.

        By default nothing is shared: another copy is loaded.
        """
        self.load()

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """Return all outputs by name, in memory of their own."""
        raise NotImplementedError

    def run_together(self, requests: Sequence[Mapping[str, Array]]) -> Sequence[Mapping[str, Array]]:
        """Run the inputs of several requests as one batch; return the outputs of each."""
        found = self.run({name: np.concatenate([each[name] for each in requests]) for name in self.inputs})
        ends = np.cumsum([len(each[self.inputs[0]]) for each in requests])
        for name in self.outputs:
            if len(found[name]) != ends[-1]:
                raise ValueError(f"output '{name}' has {len(found[name])} rows for a batch of {ends[-1]}")
        parts = {name: np.split(found[name], ends[:-1]) for name in self.outputs}
        return [{name: parts[name][index] for name in parts} for index in range(len(requests))]

    def parameter(self, key: str) -> str:
        """Return an entry `parameters { key value { string_value } }` of the configuration; "" for none."""
        return str(self.config.get("parameters", {}).get(key, {}).get("string_value", ""))

    def _place(self) -> tuple[type, str, str, int]:
        return type(self), self.directory, self.kind, self.device_id

    def threads(self) -> int:
        """Return parameter `num_threads`; without it an instance's equal share of the CPUs.

        Raises:
            TritonModelException: it is no positive integer.
        """
        given = self.parameter("num_threads")
        if given and not (given.isdecimal() and int(given)):
            raise pb_utils.TritonModelException(
                f"parameter 'num_threads' of model '{self.name}' must be a positive integer, got '{given}'"
            )
        return int(given or instance_threads(self.config))

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Execute requests joined along axis 0; if that fails, each alone: only one may be at fault."""
        if len(requests) > 1:
            try:
                return self._together(requests)
            except Exception as error:
                pb_utils.Logger.log_verbose(
                    f"a batch of '{self.name}' is executed request by request: {error}"
                )
        return [self._alone(request) for request in requests]

    def _together(self, requests: Sequence[Any]) -> list[Any]:
        return list(map(self._response, self.run_together([self._arrays(request) for request in requests])))

    def _alone(self, request: Any) -> Any:
        try:
            return self._response(self.run(self._arrays(request)))
        except Exception as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))

    def _arrays(self, request: Any) -> dict[str, Array]:
        return {name: pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in self.inputs}

    def _response(self, found: Mapping[str, Array]) -> Any:
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, found[name]) for name in self.outputs])

    def _zeros(self, tensor: dict[str, Any]) -> Array:
        reshape = tensor.get("reshape")
        dims = tensor["dims"] if reshape is None else reshape.get("shape", [])
        batch = [1] if int(self.config["max_batch_size"]) > 0 else []
        dtype = pb_utils.triton_string_to_numpy(tensor["data_type"])
        return np.zeros([*batch, *(max(1, int(dim)) for dim in dims)], dtype)


def instance_threads(config: Mapping[str, Any]) -> int:
    """Return an instance's equal share of the CPUs, for a configuration as JSON has it."""
    groups = [group for group in config.get("instance_group", ()) if group.get("kind") != "KIND_GPU"]
    return max(1, available_cpus() // max(1, sum(int(group.get("count", 1)) for group in groups)))
