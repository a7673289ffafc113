"""One model in a unit test: loaded as a server would load it, in the test's process, and called."""

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, NamedTuple

import numpy.typing as npt

from app.core.config.json import config_to_json
from app.core.config.normalise import ENSEMBLE
from app.core.tensors import InferResponse, Parameters
from app.routing.handle_calls import Arrays, arrays
from backends.python.api import server_api
from nereid import errors as public
from nereid.engine.engine import Engine
from nereid.raised import public_errors
from nereid.testing.stubs import Stub, StubbedCalls

_IN_THIS_PROCESS: Final = [{"kind": "KIND_CPU", "count": 1}]
_MODULE: Final = "from nereid.testing.models import given\n\nTritonPythonModel = given({place!r})\n"
_classes: dict[str, type] = {}
"""The classes that are loaded, by the directories of their models."""


class Response(NamedTuple):
    """A response of a model.

    Attributes:
        outputs: arrays by name; empty for an error, and for the end of a decoupled model's responses.
        parameters: given by the model.
        error: why the request failed; None for a success.
        final: whether it is the request's last.
    """

    outputs: Arrays
    parameters: Parameters
    error: public.InferError | None
    final: bool


class LoadedModel:
    """A model that is loaded; `load_model` makes it."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self._name = name

    @property
    def config(self) -> dict[str, Any]:
        """The complete configuration, as the server reports it."""
        return config_to_json(self._engine.config(self._name))

    def __call__(self, /, **inputs: npt.ArrayLike) -> Arrays:
        """Make a request of arrays by input name; return its outputs. See `infer`."""
        return self.infer(inputs)

    def infer(self, inputs: Mapping[str, npt.ArrayLike], **options: Any) -> Arrays:
        """Make a request.

        Args:
            inputs: arrays by name, batch dimension included; strings or bytes for BYTES.
            options: `outputs`, `parameters`, `request_id`, `sequence_id`, `sequence_start`, `sequence_end`,
                `priority`, `timeout_us`, as of `Engine.request`.

        Returns:
            The outputs by name, BYTES as object arrays of `bytes`.

        Raises:
            nereid.InferError: with the code and text that a client would receive.
        """
        with public_errors():
            return self._engine.infer(self._name, inputs, **options)

    def stream(self, inputs: Mapping[str, npt.ArrayLike], **options: Any) -> Iterator[Arrays]:
        """Make a request of a decoupled model; return an iterator over the outputs of its responses.

        Raises:
            nereid.InferError: from the iterator; see `infer`.
        """
        with public_errors():
            yield from self._engine.stream(self._name, inputs, **options)

    def responses(self, inputs: Mapping[str, npt.ArrayLike], **options: Any) -> list[Response]:
        """Make a request and return all its responses, failed ones too, with their parameters."""
        received: SimpleQueue[InferResponse] = SimpleQueue()
        with public_errors():
            self._engine.send(self._engine.request(self._name, inputs, **options), received.put)
        found = [_read(received.get())]
        while not found[-1].final:
            found.append(_read(received.get()))
        return found

    def batch(self, requests: Sequence[Mapping[str, npt.ArrayLike]]) -> list[Arrays | public.InferError]:
        """Have the model execute several requests at once, as its dynamic batcher may.

        Returns:
            For each request, the outputs of its first response, or its error.

        Raises:
            nereid.InferError: the model has no `max_batch_size`, or the requests do not fit into it.
        """
        with public_errors():
            made = [self._engine.request(self._name, inputs) for inputs in requests]
            queues = self._engine.execute_together(self._name, made)
        return [_first(received) for received in queues]


def _first(received: "SimpleQueue[InferResponse]") -> Arrays | public.InferError:
    first = found = _read(received.get())
    while not found.final:
        found = _read(received.get())
    return first.outputs if first.error is None else first.error


def _read(response: InferResponse) -> Response:
    failure = response.failure
    error = None if failure is None else public.InferError(failure.code.value, failure.message)
    return Response({} if error is not None else arrays(response), response.parameters, error, response.final)


@contextmanager
def load_model(
    model: str | Path | type,
    *,
    config: Mapping[str, Any] | None = None,
    calls: Mapping[str, Stub] | None = None,
    others: Sequence[str | Path] = (),
    **flags: object,
) -> Iterator[LoadedModel]:
    """Load a model for the time of a `with` block.

    It has one instance, on the CPU and in this process, whatever its configuration says of instances: a
    debugger stops in it, and what a test patches is patched for it too.

    Args:
        model: the model's directory, or a class `TritonPythonModel`.
        config: a model configuration as in JSON, instead of the directory's; a class needs one, unless it has
            `auto_complete_config`.
        calls: what answers calls of the model to other models (BLS), by name: functions from arrays by input
            to arrays by output. One that raises makes the call fail; one that is a generator has any number
            of responses.
        others: directories of models to load too, for calls that a real model is to answer.
        flags: tritonserver's, with underscores, such as `backend_config`.

    Raises:
        nereid.InferError: the model cannot be loaded, with the text that a server would log.
    """
    with tempfile.TemporaryDirectory(prefix="nereid-testing-") as scratch, public_errors():
        folder = _folder(model, Path(scratch), config or {})
        folders = [Path(other).absolute() for other in others]
        repositories = list(dict.fromkeys(str(each.parent) for each in (folder, *folders)))
        started = {"model_control_mode": "explicit", "exit_timeout_secs": 1, **flags}
        with Engine.open(model_repository=repositories, **started) as engine, _answering(engine, calls):
            try:
                for each in folders:
                    engine.load(each.name)
                engine.load(folder.name, _with_one_instance(engine, folder.name, config))
                yield LoadedModel(engine, folder.name)
            finally:
                _classes.pop(str(folder), None)


@contextmanager
def _answering(engine: Engine, calls: Mapping[str, Stub] | None) -> Iterator[None]:
    """Have functions answer a model's calls of others."""
    outer = server_api.current()
    if calls:
        server_api.install(StubbedCalls(engine.plane, engine.connection, calls))
    try:
        yield
    finally:
        server_api.install(outer)  # of a model that is loaded around this one


def _folder(model: str | Path | type, scratch: Path, config: Mapping[str, Any]) -> Path:
    """Return a model's directory; that of a class is written, with a file that gives the class."""
    if not isinstance(model, type):
        return Path(model).absolute()
    folder = scratch / str(config.get("name", "model"))
    _classes[str(folder)] = model
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(_MODULE.format(place=str(folder)))
    return folder


def given(place: str) -> type:
    """Return the class that a test has given; called by the file of its model."""
    return _classes[place]


def _with_one_instance(engine: Engine, name: str, config: Mapping[str, Any] | None) -> str | None:
    """Return the configuration to load a model with, as JSON; None for that of its directory."""
    if config is None:
        declared = engine.repository.catalog.candidate(name, None).config
        if declared.platform == ENSEMBLE:
            return None
        config = config_to_json(declared)
    return json.dumps({"backend": "python", **config, "name": name, "instance_group": _IN_THIS_PROCESS})
