"""Loads a Python model and executes its requests; in a replica or in a worker process."""

import asyncio
import logging
import time
from collections.abc import Sequence
from concurrent.futures import Future
from operator import attrgetter
from typing import Any, Final, Protocol

from app.core.errors import InferError
from app.core.tensors import InferRequest, InferResponse, SequenceId, failed
from backends.base import DeliverAll, Request, deliver_each
from backends.python.api import calls, server_api
from backends.python.api.errors import ContractError, execution_failed, loading_failed
from backends.python.api.event_loop import EventLoop
from backends.python.api.model_config import ModelConfig
from backends.python.api.request import RELEASE_RESCHEDULE, Context, ReceivedRequest
from backends.python.api.response import Encoder, InferenceResponse
from backends.python.api.tensor import Tensor
from backends.python.execution import loader
from backends.python.execution.failures import log_failure
from backends.python.execution.instance import PythonInstance
from backends.python.execution.readiness import Readiness

logger = logging.getLogger(__name__)

_SENDER: Final = attrgetter("_sender")


class Clocked(Protocol):
    """Records the times of a model's computation, in `time.monotonic_ns`, as an `Instance` does."""

    compute_start_ns: int
    compute_end_ns: int


class Execution:
    """A loaded model.

    Attributes:
        deliver_all: as that of an `Instance`.
    """

    def __init__(self, instance: PythonInstance) -> None:
        """Import the model's file and initialise the model.

        Raises:
            InferError: INTERNAL with the text and place of the model's exception.
        """
        self.instance = instance
        model_class = loader.acquire(instance)
        try:
            if not hasattr(model_class, "execute"):
                raise ContractError(f"Python model {instance.file} does not implement `execute` method.")
            self.model = _initialised(model_class, instance)
        except (Exception, SystemExit) as error:
            loader.release(instance)
            raise loading_failed(error, loader.OUR_FOLDER) from error
        self._execute_model = self.model.execute
        self._encoder = Encoder(
            instance.model_name, instance.version, instance.returned, instance.bf16, instance.config
        )
        self._context = Context(self._encoder, instance.outputs, instance.decoupled)
        self.decoupled = instance.decoupled
        self.deliver_all: DeliverAll = deliver_each
        self.tells_readiness = hasattr(self.model, "is_ready")
        self._loop = EventLoop(f"{instance.name} asyncio")
        self.is_ready = Readiness(self.model, self._loop, instance.name)

    def close(self) -> None:
        """Call the model's `finalize` and undo the import."""
        try:
            if hasattr(self.model, "finalize"):
                with server_api.no_calls("'finalize'"):
                    self.model.finalize()
        except (Exception, SystemExit) as error:
            log_failure("finalize", self.instance.name, error)
        finally:
            self._loop.close()
            loader.release(self.instance)

    def finalize_sequence(self, sequence_id: SequenceId) -> None:
        """Call the model's `finalize_sequence`, if it has one, for a sequence that ended."""
        try:
            if hasattr(self.model, "finalize_sequence"):
                self.model.finalize_sequence(sequence_id)
        except (Exception, SystemExit) as error:
            log_failure("finalize_sequence", self.instance.name, error)

    def execute(self, requests: Sequence[Request], clock: Clocked) -> None:
        """Execute one batch; the model replies to its requests now or later."""
        calls.executing.set(requests)
        try:
            self._execute(requests, clock)
        finally:
            calls.executing.set(())

    def _execute(self, requests: Sequence[Request], clock: Clocked) -> None:
        context = self._context
        received = [ReceivedRequest(request, context) for request in requests]
        clock.compute_start_ns = time.monotonic_ns()
        try:
            returned = self._execute_model(received)
            if returned.__class__ is not list and asyncio.iscoroutine(returned):
                if self.decoupled:
                    self._loop.start(returned, _Background(self.instance.name, requests))
                    return
                returned = server_api.current().run(returned, self._loop)
            clock.compute_end_ns = time.monotonic_ns()
            responses = self._checked(received, returned)
        except (Exception, SystemExit) as error:
            clock.compute_end_ns = time.monotonic_ns()
            self._fail(received, requests, error)
            return
        # Dropping the last reference of a sender would end its request.
        _senders = list(map(_SENDER, received))
        del received  # with the last reference gone, the output may use the input's memory
        encode, viewed = self._encoder.encode, self.instance.apart
        replied: list[Request] = []
        replies: list[InferResponse] = []
        for request, response in zip(requests, responses, strict=True):
            if response is None:
                continue
            if request.answered:
                name = self.instance.name
                logger.warning("instance '%s' returned a response to a request it had answered", name)
                continue
            try:
                encoded = encode(response, request.infer, True, viewed)
            except Exception as error:  # fails this request only
                encoded = self._not_encoded(response, request.infer, error)
            replied.append(request)
            replies.append(encoded)
        self.deliver_all(replied, replies)

    def _checked(self, received: list[ReceivedRequest], returned: Any) -> Sequence[InferenceResponse | None]:
        """Return the checked result of `execute`, with None for requests that are answered otherwise."""
        if self.decoupled and returned is not None:
            raise ContractError(
                f"Python model '{self.instance.name}' is using the decoupled mode and the execute"
                " function must return None."
            )
        if returned is None and (self.decoupled or all(map(_answers_itself, received))):
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
                _check_unusual(request, response, self.decoupled)
        return responses

    def _fail(
        self, received: list[ReceivedRequest], requests: Sequence[Request], error: BaseException
    ) -> None:
        log_failure("execute", self.instance.name, error)
        failure = execution_failed(self.instance.name, error, loader.OUR_FOLDER)
        for received_request, request in zip(received, requests, strict=True):
            if received_request._sender is not None:
                received_request._sender._release()
            request.rescheduled = request.detached = False
            if not request.answered:
                request.deliver(failed(failure, request.infer.id))

    def _not_encoded(
        self, response: InferenceResponse, infer: InferRequest, error: Exception
    ) -> InferResponse:
        plain = error if isinstance(error, InferError) else ContractError(_why_not_sent(response, error))
        return failed(execution_failed(self.instance.name, plain, loader.OUR_FOLDER), infer.id)


class _Background:
    """Fails the requests of a decoupled `async def execute` that ends in an exception."""

    def __init__(self, name: str, requests: Sequence[Request]) -> None:
        self._name = name
        self._requests = requests

    def __call__(self, ended: "Future[Any]") -> None:
        if ended.cancelled() or (error := ended.exception()) is None:
            return
        log_failure("execute", self._name, error)
        failure = execution_failed(self._name, error, loader.OUR_FOLDER)
        for request in self._requests:
            if not request.answered:
                request.deliver(failed(failure, request.infer.id))


def described(fields: dict[str, Any]) -> PythonInstance:
    """Return an instance by the fields that another process has sent."""
    tuples = {name: tuple(fields[name]) for name in ("outputs", "states", "bf16")}
    return PythonInstance(**{**fields, **tuples, "apart": True})


def completed(instance: PythonInstance) -> dict[str, Any] | None:
    """Return the configuration after the model's `auto_complete_config`; None for a model without one.

    Raises:
        InferError: INTERNAL with the text and place of the model's exception.
    """
    model_class = loader.acquire(instance)
    try:
        complete = getattr(model_class, "auto_complete_config", None)
        if complete is None:
            return None
        with server_api.no_calls("'auto_complete_config'"):
            returned = complete(ModelConfig(instance.config, instance.backend_config))
        if not isinstance(returned, ModelConfig):
            raise ContractError(
                f"auto_complete_config function in model '{instance.model_name}' must return a valid"
                " pb.ModelConfig object."
            )
        return returned.as_dict()
    except (Exception, SystemExit) as error:
        raise loading_failed(error, loader.OUR_FOLDER) from error
    finally:
        loader.release(instance)


def _initialised(model_class: Any, instance: PythonInstance) -> Any:
    with server_api.no_calls("'initialize'"):
        model = model_class()
        if hasattr(model, "initialize"):
            model.initialize(instance.initialize_arguments())
    return model


def _check_unusual(request: ReceivedRequest, response: Any, decoupled: bool) -> None:
    """Check a result other than a response: None, a rescheduled request, or a value of another type."""
    if request._release_flags == RELEASE_RESCHEDULE:
        if response is not None:
            raise ContractError(
                "Expected a None object in the execute function return list for reschduled request, found"
                f" type '{type(response)}'."
            )
        request._request.rescheduled = True
        if request._sender is not None:
            request._sender._release()
    elif response is None and (decoupled or _answers_itself(request)):
        request._request.detached = True
    elif not isinstance(response, InferenceResponse):
        raise ContractError(
            "Expected an 'InferenceResponse' object in the execute function return list, found type"
            f" '{type(response)}'."
        )


def _why_not_sent(response: InferenceResponse, error: Exception) -> str:
    other = next((tensor for tensor in response._tensors if not isinstance(tensor, Tensor)), None)
    if other is None:
        return str(error)
    return f"Expected 'Tensor' objects as the outputs of an 'InferenceResponse', found type '{type(other)}'."


def _answers_itself(request: ReceivedRequest) -> bool:
    return request._sender is not None or request._release_flags == RELEASE_RESCHEDULE
