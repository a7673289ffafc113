"""Triton's teaching backend `square`: a decoupled model that sends n responses OUT = n to IN INT32[1] = n."""

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np

from app.core.errors import internal, invalid_arg
from app.core.tensors import InferRequest, InferResponse, Tensor, failed
from backends.base import Backend, Instance, Model, Request

logger = logging.getLogger(__name__)

_THREADS: Final = 4


class SquareBackend(Backend):
    """Responds on threads of its own, so that responses of different requests interleave."""

    @classmethod
    def inspect(cls, model: Model) -> bool:
        return True

    def model_initialize(self, model: Model) -> None:
        if not model.config.model_transaction_policy.decoupled:
            raise invalid_arg("'square' backend expects a model with the decoupled transaction policy")
        model.state = ThreadPoolExecutor(_THREADS, f"{model.name} square")

    def model_finalize(self, model: Model) -> None:
        threads: ThreadPoolExecutor = model.state
        threads.shutdown()

    def instance_execute(self, instance: Instance, requests: Sequence[Request]) -> None:
        threads: ThreadPoolExecutor = instance.model.state
        for request in requests:
            threads.submit(_deliver, instance.model, request)


def _deliver(model: Model, request: Request) -> None:
    infer = request.infer
    try:
        count = _count(infer)
        response = InferResponse(
            model.name,
            model.version_text,
            (Tensor.from_array("OUT", np.array([count], np.int32)),),
            infer.id,
            final=False,
        )
        for _ in range(count):
            if request.is_cancelled():
                break
            request.deliver(response)
        request.deliver(InferResponse(id=infer.id, final=True))
    except Exception as error:
        logger.exception("answering a request of model '%s'", model.name)
        if not request.answered:
            request.deliver(failed(error, infer.id))


def _count(infer: InferRequest) -> int:
    for tensor in infer.inputs:
        if tensor.name == "IN":
            return int(tensor.array().ravel()[0])
    raise internal("'square' backend expects input IN")
