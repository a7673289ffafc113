"""Backend `python`: a model is a class `TritonPythonModel` in model.py, executed in this process.

Triton starts a stub process for each instance; here a replica process is the instance's, so nothing has to
cross a process boundary between the scheduler and the model. What a model sees and what its clients read
when it fails is Triton's.
"""

import asyncio
import json
import logging
import time
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from google.protobuf import json_format
from tritonclient.grpc import model_config_pb2 as mc

from app.core.config_json import config_to_json
from app.core.errors import InferError, invalid_arg
from app.core.tensors import InferRequest, InferResponse, failed
from backends.base import Backend, Instance, Model, Request
from backends.python import calls, loader
from backends.python.errors import ContractError, execution_failed, loading_failed
from backends.python.event_loop import EventLoop
from backends.python.model_config import ModelConfig
from backends.python.portable import is_portable
from backends.python.readiness import Readiness
from backends.python.request import RELEASE_RESCHEDULE, Context, ReceivedRequest
from backends.python.response import Encoder, InferenceResponse

logger = logging.getLogger(__name__)


class _Loaded:
    """A model object and what executes it."""

    def __init__(self, model: Any, instance: Instance, decoupled: bool) -> None:
        self.model = model
        self.execute = model.execute
        self.encoder = Encoder(instance.model)
        self.context = Context(self.encoder, instance.model.signature.names, decoupled)
        self.decoupled = decoupled
        self.loop = EventLoop(f"{instance.name} asyncio")
        self.is_ready = Readiness(model, self.loop, instance.name)


class PythonBackend(Backend):
    """Executes Python models."""

    def model_initialize(self, model: Model) -> None:
        value = model.parameter("FORCE_CPU_ONLY_INPUT_TENSORS", "yes")
        if value not in ("yes", "no"):
            raise invalid_arg(f"Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: {value}")

    def instance_initialize(self, instance: Instance) -> None:
        model = instance.model
        decoupled = model.config.model_transaction_policy.decoupled
        kind = loader.acquire(model)
        try:
            if not hasattr(kind, "execute"):
                raise ContractError(
                    f"Python model {model.artifact('model.py')} does not implement `execute` method."
                )
            instance.state = _Loaded(_initialised(kind, instance), instance, decoupled)
        except Exception as error:
            loader.release(model)
            raise loading_failed(error, loader.OUR_FOLDER) from error

    def instance_finalize(self, instance: Instance) -> None:
        loaded: _Loaded | None = instance.state
        if loaded is None:
            return
        instance.state = None
        try:
            if hasattr(loaded.model, "finalize"):
                loaded.model.finalize()
        except Exception:
            logger.exception("finalize of instance '%s' failed", instance.name)
        finally:
            loaded.loop.close()
            loader.release(instance.model)

    def instance_ready(self, instance: Instance) -> bool:
        loaded: _Loaded | None = instance.state
        return loaded is not None and loaded.is_ready()

    def instance_portable(self, instance: Instance) -> bool:
        model = instance.model
        if model.config.model_transaction_policy.decoupled:
            return False
        return is_portable(model.artifact("model.py").read_bytes())

    def instance_execute(self, instance: Instance, requests: Sequence[Request]) -> None:
        for request in requests:
            if request.infer.chain:
                calls.within(requests, partial(self._execute, instance, requests))
                return
        self._execute(instance, requests)

    def _execute(self, instance: Instance, requests: Sequence[Request]) -> None:
        loaded: _Loaded = instance.state
        context = loaded.context
        received = [ReceivedRequest(request, context) for request in requests]
        instance.compute_start_ns = time.monotonic_ns()
        try:
            returned = loaded.execute(received)
            if returned.__class__ is not list and asyncio.iscoroutine(returned):
                if loaded.decoupled:
                    loaded.loop.start(returned, _Background(instance, requests))
                    return
                returned = loaded.loop.run(returned)
            instance.compute_end_ns = time.monotonic_ns()
            answers = _checked(loaded, instance, received, returned)
        except (Exception, SystemExit) as error:
            instance.compute_end_ns = time.monotonic_ns()
            _fail(instance, received, requests, error)
            return
        for request, response in zip(requests, answers, strict=True):
            if response is None:
                continue
            if request.answered:
                logger.warning(
                    "instance '%s' returned a response to a request it had answered", instance.name
                )
            else:
                request.reply(_encoded(loaded.encoder, instance, response, request.infer))

    @classmethod
    def auto_complete(cls, model: Model) -> mc.ModelConfig:
        kind = loader.acquire(model)
        try:
            return _auto_completed(kind, model)
        except Exception as error:
            raise loading_failed(error, loader.OUR_FOLDER) from error
        finally:
            loader.release(model)


class _Background:
    """What becomes of the requests of a decoupled `async def execute` when it ends in an exception."""

    def __init__(self, instance: Instance, requests: Sequence[Request]) -> None:
        self._instance = instance
        self._requests = requests

    def __call__(self, ended: "Future[Any]") -> None:
        if ended.cancelled() or (error := ended.exception()) is None:
            return
        logger.error("execute of instance '%s' failed", self._instance.name, exc_info=error)
        response = execution_failed(self._instance.name, error, loader.OUR_FOLDER)
        for request in self._requests:
            if not request.answered:
                request.reply(failed(response, request.infer.id))


def _initialised(kind: Any, instance: Instance) -> Any:
    model = kind()
    if hasattr(model, "initialize"):
        model.initialize(initialize_arguments(instance))
    return model


def initialize_arguments(instance: Instance) -> dict[str, str]:
    """What `initialize` is given; `model_repository` is the model's own directory, as in Triton."""
    model = instance.model
    return {
        "model_config": json.dumps(config_to_json(model.config)),
        "model_instance_kind": instance.kind,
        "model_instance_device_id": str(instance.device_id),
        "model_instance_name": instance.name,
        "model_repository": str(model.directory.absolute()),
        "model_version": model.version_text,
        "model_name": model.name,
    }


def _checked(
    loaded: _Loaded, instance: Instance, received: list[ReceivedRequest], returned: Any
) -> Sequence[InferenceResponse | None]:
    """Hold what `execute` returned against Triton's rules; None where a sender or a next turn answers."""
    if loaded.decoupled and returned is not None:
        raise ContractError(
            f"Python model '{instance.model.name}' is using the decoupled mode and the execute function must"
            " return None."
        )
    if returned is None and (loaded.decoupled or all(map(_answers_itself, received))):
        responses: Sequence[Any] = [None] * len(received)
    else:
        responses = returned
    if not isinstance(responses, list):
        raise ContractError(f"Expected a list in the execute return, found type '{type(responses)}'.")
    if len(responses) != len(received):
        raise ContractError(
            "Number of InferenceResponse objects do not match the number of InferenceRequest objects."
            f" InferenceRequest(s) size is:{len(received)}, and InferenceResponse(s) size"
            f" is:{len(responses)}\n"
        )
    for request, response in zip(received, responses, strict=True):
        if response.__class__ is not InferenceResponse or request._release_flags == RELEASE_RESCHEDULE:
            _check_unusual(loaded, request, response)
    return responses


def _check_unusual(loaded: _Loaded, request: ReceivedRequest, response: Any) -> None:
    """Everything but a plain response: none, a rescheduled request, or something that is no response."""
    if request._release_flags == RELEASE_RESCHEDULE:
        if response is not None:
            raise ContractError(
                "Expected a None object in the execute function return list for reschduled request, found"
                f" type '{type(response)}'."
            )
        request._request.rescheduled = True
        if request._sender is not None:
            request._sender._release()
    elif response is None and (loaded.decoupled or _answers_itself(request)):
        request._request.detached = True
    elif not isinstance(response, InferenceResponse):
        raise ContractError(
            "Expected an 'InferenceResponse' object in the execute function return list, found type"
            f" '{type(response)}'."
        )


def _answers_itself(request: ReceivedRequest) -> bool:
    return request._sender is not None or request._release_flags == RELEASE_RESCHEDULE


def _fail(
    instance: Instance, received: list[ReceivedRequest], requests: Sequence[Request], error: BaseException
) -> None:
    logger.error("execute of instance '%s' failed", instance.name, exc_info=error)
    response = execution_failed(instance.name, error, loader.OUR_FOLDER)
    for mine, request in zip(received, requests, strict=True):
        if mine._sender is not None:
            mine._sender._release()
        request.rescheduled = request.detached = False
        if not request.answered:
            request.reply(failed(response, request.infer.id))


def _encoded(
    encoder: Encoder, instance: Instance, response: InferenceResponse, infer: InferRequest
) -> InferResponse:
    """Encode; an output that cannot be encoded fails its own request and no other."""
    try:
        return encoder.encode(response, infer)
    except Exception as error:
        plain = error if isinstance(error, InferError) else ContractError(str(error))
        return failed(execution_failed(instance.name, plain, loader.OUR_FOLDER), infer.id)


def _auto_completed(kind: Any, model: Model) -> mc.ModelConfig:
    complete = getattr(kind, "auto_complete_config", None)
    if complete is None:
        return model.config
    returned = complete(ModelConfig(json.dumps(config_to_json(model.config))))
    if not isinstance(returned, ModelConfig):
        raise ContractError(
            f"auto_complete_config function in model '{model.name}' must return a valid pb.ModelConfig"
            " object."
        )
    parsed = json_format.ParseDict(returned.as_dict(), mc.ModelConfig())
    config = mc.ModelConfig()
    config.CopyFrom(model.config)
    config.max_batch_size = parsed.max_batch_size
    for field in ("input", "output"):
        config.ClearField(field)
        getattr(config, field).extend(getattr(parsed, field))
    if parsed.HasField("dynamic_batching") and not config.WhichOneof("scheduling_choice"):
        config.dynamic_batching.CopyFrom(parsed.dynamic_batching)
    if parsed.HasField("model_transaction_policy"):
        config.model_transaction_policy.CopyFrom(parsed.model_transaction_policy)
    return config
