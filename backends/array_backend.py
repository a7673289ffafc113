"""Backends that map named arrays to named arrays: batches are joined and split for them.

Responses are built before the first of them is sent, so that a batch that fails can be executed again with
each request alone.
"""

import logging
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from app.core.errors import ErrorCode, Failure, FailureReason, InferError, internal
from app.core.tensors import InferResponse, Tensor, failed
from backends.base import Backend, Instance, Request
from backends.batch_arrays import (
    Array,
    Unmergeable,
    as_array,
    join_inputs,
    join_ragged,
    output_tensor,
    split_outputs,
    view_input,
    wanted_outputs,
)
from backends.signature import Output

logger = logging.getLogger(__name__)


class ArrayBackend(Backend):
    """Base class for frameworks that map named arrays to named arrays.

    Subclasses write `load` and `execute`; the requests of a batch are joined along axis 0, executed once and
    split again. When a joined execution fails, each request is executed alone, so that only the one at fault
    fails.

    Attributes:
        checks_dims: whether to compare the shape of every output with the configuration at each execution.
    """

    checks_dims = True
    begins_compute = True

    @abstractmethod
    def load(self, instance: Instance) -> Any:
        """Load the model for one instance and return what `execute` and `close` take as `loaded`."""

    @abstractmethod
    def execute(self, loaded: Any, inputs: Mapping[str, Array], outputs: Sequence[str]) -> dict[str, Array]:
        """Run the model once.

        Args:
            loaded: what `load` returned.
            inputs: arrays by input name, batch dimension included; BYTES as object arrays of bytes.
            outputs: names of the requested outputs, all from the configuration.

        Returns:
            At least the requested outputs, by name. Responses are views of these arrays: memory that is
            written to again must be copied, except for arrays of `SMALL` bytes and less, of which they are
            copies.
        """

    def close(self, loaded: Any) -> None:
        """Release the result of `load`."""

    def instance_initialize(self, instance: Instance) -> None:
        instance.state = self.load(instance)

    def instance_finalize(self, instance: Instance) -> None:
        self.close(instance.state)

    def instance_execute(self, instance: Instance, requests: Sequence[Request]) -> None:
        execute_merged(self, instance, requests)


def execute_merged(backend: ArrayBackend, instance: Instance, requests: Sequence[Request]) -> None:
    """Execute a batch and deliver the response of each of its requests.

    Args:
        backend: executes arrays.
        instance: receives compute_start_ns and compute_end_ns of the last execution.
        requests: one batch, of equal input names and equal shapes behind the batch dimension. Otherwise,
            and if the model does not batch, each request is executed alone.
    """
    if len(requests) == 1:
        _execute_alone(backend, instance, requests[0])
        return
    try:
        if not instance.model.signature.batched:
            raise Unmergeable
        responses = _execute(backend, instance, requests)
    except Exception:
        # One request may be at fault: alone, only that one fails.
        for request in requests:
            _execute_alone(backend, instance, request)
        return
    instance.deliver_all(requests, responses)


def backend_failure(error: Exception) -> Failure:
    """Return the failure for a framework's exception: its first line, with reason BACKEND."""
    if isinstance(error, InferError):
        return Failure(error.code, error.message, FailureReason.BACKEND)
    first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return Failure(ErrorCode.INTERNAL, first_line, FailureReason.BACKEND)


def _execute_alone(backend: ArrayBackend, instance: Instance, request: Request) -> None:
    try:
        if instance.model.signature.ragged is None:
            response = _execute_one(backend, instance, request)
        else:
            (response,) = _execute(backend, instance, (request,))
    except Exception as error:
        # An InferError is worded for the client, so its cause matters to developers only.
        level = logging.DEBUG if isinstance(error, InferError) else logging.ERROR
        logger.log(level, "model '%s' failed", instance.model.name, exc_info=error)
        response = failed(backend_failure(error), request.infer.id)
    instance.deliver_all((request,), (response,))


def _execute_one(backend: ArrayBackend, instance: Instance, request: Request) -> InferResponse:
    """Execute a request whose inputs need not be joined, nor its outputs split."""
    model, infer = instance.model, request.infer
    signature = model.signature
    wanted = signature.select(infer.outputs) if infer.outputs else signature.outputs
    if instance.answer is not None and wanted is signature.outputs:
        instance.begin_compute()
        outputs = instance.answer(infer.inputs)
        if outputs is not None:
            instance.compute_end_ns = time.monotonic_ns()
            return InferResponse(signature.model_name, model.version_text, outputs, infer.id)
    return InferResponse(
        signature.model_name, model.version_text, _run_alone(backend, instance, request, wanted), infer.id
    )


def _run_alone(
    backend: ArrayBackend, instance: Instance, request: Request, wanted: Sequence[Output]
) -> tuple[Tensor, ...]:
    signature, infer = instance.model.signature, request.infer
    if instance.merged_inputs is not None:
        feed = join_inputs((request,), signature, instance.merged_inputs)
    elif signature.reshapes:
        feed = {tensor.name: view_input(tensor, signature) for tensor in infer.inputs}
    else:
        feed = {}
        for tensor in infer.inputs:  # a comprehension is a call
            feed[tensor.name] = as_array(tensor, signature)
    arrays = _run(backend, instance, feed, wanted)
    outputs: tuple[Tensor, ...] = ()
    for output in wanted:
        outputs += (output_tensor(output, arrays[output.name]),)
    return outputs


def _execute(backend: ArrayBackend, instance: Instance, requests: Sequence[Request]) -> list[InferResponse]:
    signature = instance.model.signature
    if signature.ragged is not None:
        feed = join_ragged(requests, signature, signature.ragged, instance.merged_inputs)
    else:
        feed = join_inputs(requests, signature, instance.merged_inputs)
    selections = [signature.select(request.infer.outputs) for request in requests]
    arrays = _run(backend, instance, feed, wanted_outputs(selections, signature))
    rows = split_outputs(arrays, requests, selections, signature)
    version = instance.model.version_text
    return [
        InferResponse(signature.model_name, version, outputs, request.infer.id)
        for request, outputs in zip(requests, rows, strict=True)
    ]


def _run(
    backend: ArrayBackend, instance: Instance, feed: Mapping[str, Array], wanted: Sequence[Output]
) -> dict[str, Array]:
    """Run the model once, and compare its outputs with the configuration."""
    signature = instance.model.signature
    names = signature.names if wanted is signature.outputs else [output.name for output in wanted]
    instance.begin_compute()
    arrays = backend.execute(instance.state, feed, names)
    instance.compute_end_ns = time.monotonic_ns()
    fitting = signature.fitting
    for output in wanted:
        name = output.name
        array = arrays.get(name)
        if array is None:
            raise internal(f"model '{signature.model_name}' did not produce output '{name}'")
        if array.dtype is not output.dtype or array.shape != fitting.get(name):
            signature.check(output, array, backend.checks_dims)
    return arrays
