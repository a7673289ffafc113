"""TensorFlow Serving's gRPC API: inferences, GetModelMetadata and GetModelStatus."""

import asyncio
from functools import partial
from typing import Any, Final

from app.core.errors import ErrorCode, InferError, internal, invalid_arg, unsupported
from app.core.system.tasks import Tasks, by_size
from app.core.tensors import Buffer, InferRequest, InferResponse
from app.ingress.access.caller import GRANT
from app.ingress.grpc.rpc import Method
from app.ingress.http2.call import UnaryCall
from app.ingress.service.interface import InferenceService
from app.protocol.tfserving import examples, multi_inference
from app.protocol.tfserving import grpc as messages
from app.protocol.tfserving.descriptions import version_status
from app.protocol.tfserving.signature import Signature, labelled_version, servable_not_found, signature_of
from app.routing.table import VersionEntry
from app.routing.waiting_room import resolve_loaded

_DECOUPLED: Final = "Predict doesn't support models with decoupled transaction policy"


def tfserving_methods(service: InferenceService) -> dict[str, Method]:
    """Return the methods by path."""
    made = _Methods(service)
    calls = {
        f"/{messages.PREDICTION_SERVICE}/Predict": ("inference", made.predict),
        f"/{messages.PREDICTION_SERVICE}/Classify": ("inference", made.classify),
        f"/{messages.PREDICTION_SERVICE}/Regress": ("inference", made.regress),
        f"/{messages.PREDICTION_SERVICE}/MultiInference": ("inference", made.multi_inference),
        f"/{messages.PREDICTION_SERVICE}/GetModelMetadata": ("metadata", made.metadata),
        f"/{messages.MODEL_SERVICE}/GetModelStatus": ("metadata", made.status),
    }
    return {
        path: Method(category, partial(UnaryCall, partial(_start, answer)), names_model=True)  # type: ignore[arg-type]
        for path, (category, answer) in calls.items()
    }


def _start(answer: Any, call: UnaryCall, data: Buffer) -> None:
    """Answer a call in a task, which ends with the call."""
    call.on_cancel = _RUNNING.start(_run(answer, call, data)).cancel


_RUNNING: Final = Tasks()
"""As many as there are calls, which the server limits."""


async def _run(answer: Any, call: UnaryCall, data: Buffer) -> None:
    try:
        response = await answer(call, bytes(data))
        if not call.over:
            call.respond((response.SerializeToString(),))
    except Exception as error:
        call.fail(error)


class _Methods:
    def __init__(self, service: InferenceService) -> None:
        self._service = service

    async def predict(self, call: UnaryCall, data: bytes) -> Any:
        request = _parsed(messages.PredictRequest, data)
        entry, signature = await self._signed(request.model_spec)
        decode = (request, entry.version, signature, call.deadline)
        response = await self._infer(entry, await by_size(len(data), messages.decode_predict, *decode))
        size = sum(len(tensor.data) for tensor in response.outputs)
        return await by_size(size, messages.encode_predict, response, entry.version, signature)

    async def classify(self, call: UnaryCall, data: bytes) -> Any:
        request = _parsed(examples.ClassificationRequest, data)
        return await self._answered(
            call, request, examples.classify_outputs, examples.classes, examples.classification_response
        )

    async def regress(self, call: UnaryCall, data: bytes) -> Any:
        request = _parsed(examples.RegressionRequest, data)
        return await self._answered(
            call, request, examples.regress_outputs, examples.values, examples.regression_response
        )

    async def _answered(self, call: UnaryCall, request: Any, outputs: Any, read: Any, answer: Any) -> Any:
        """Answer a request with examples, by the three functions of its kind."""
        entry, signature = await self._signed(request.model_spec)
        found = examples.examples_of(request, signature)
        response = await self._infer_examples(call, entry, found, signature, outputs(signature))
        return answer(read(response, signature, len(found)), entry.name, entry.version, signature)

    async def multi_inference(self, call: UnaryCall, data: bytes) -> Any:
        request = _message(multi_inference.MultiInferenceRequest, data)
        entry, signature = await self._signed(multi_inference.model_spec(request))
        tasks = multi_inference.decode_tasks(request, signature)
        wanted = multi_inference.wanted_outputs(tasks, signature)
        found = examples.input_examples(request.input)
        response = await self._infer_examples(call, entry, found, signature, wanted)
        return multi_inference.encode_results(tasks, response, entry.version, signature, len(found))

    async def _infer_examples(
        self,
        call: UnaryCall,
        entry: VersionEntry,
        found: list[bytes],
        signature: Signature,
        wanted: list[str],
    ) -> InferResponse:
        given = (entry.name, entry.version, found, signature, wanted, call.deadline)
        return await self._infer(entry, examples.examples_request(*given))

    async def metadata(self, call: UnaryCall, data: bytes) -> Any:
        request = _parsed(messages.GetModelMetadataRequest, data)
        if not request.metadata_field:
            raise invalid_arg("GetModelMetadataRequest must specify at least one metadata_field")
        for field in request.metadata_field:
            if field != messages.SIGNATURE_DEF:
                raise invalid_arg(f"Metadata field {field} is not supported")
        entry = await self._resolve(request.model_spec)
        signature = signature_of(entry.model_config)
        return messages.encode_metadata(request.model_spec.name, entry.version, signature)

    async def status(self, call: UnaryCall, data: bytes) -> Any:
        spec = _parsed(messages.GetModelStatusRequest, data).model_spec
        _require(spec.name)
        version = str(spec.version.value) if spec.HasField("version") else ""
        index = await self._service.repository_index()
        return messages.encode_status(
            version_status(spec.name, version, index.models)["model_version_status"]
        )

    async def _signed(self, spec: Any) -> tuple[VersionEntry, Signature]:
        """Return the version that answers an inference, and its signature."""
        entry = await self._resolve(spec)
        if entry.decoupled:
            raise unsupported(_DECOUPLED)
        return entry, signature_of(entry.model_config)

    async def _resolve(self, spec: Any) -> VersionEntry:
        _require(spec.name)
        version = str(spec.version.value) if spec.HasField("version") else ""
        try:
            if spec.version_label:
                entry = await resolve_loaded(self._service, spec.name)
                version = labelled_version(entry.model_config, spec.version_label)
            return await resolve_loaded(self._service, spec.name, version)
        except InferError as error:
            if error.code is ErrorCode.NOT_FOUND:
                raise servable_not_found(spec.name, version) from None
            raise

    async def _infer(self, entry: VersionEntry, request: InferRequest) -> InferResponse:
        future: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()

        def receive(response: InferResponse) -> None:
            if future.done():
                return
            if response.failure is not None:
                future.set_exception(response.failure.error())
            elif response.final:
                future.set_result(response)
            else:
                future.set_exception(internal("expected a single response"))

        call = self._service.submit(entry, request, receive)
        try:
            return await future
        except asyncio.CancelledError:
            call.cancel()
            raise


def _message(message_class: Any, data: bytes) -> Any:
    try:
        return message_class.FromString(data)
    except Exception:  # DecodeError, which protobuf's implementations derive from different classes
        raise invalid_arg("the message cannot be parsed") from None


def _parsed(message_class: Any, data: bytes) -> Any:
    message = _message(message_class, data)
    if not message.HasField("model_spec") or not message.model_spec.name:
        raise invalid_arg("Missing ModelSpec")
    return message


def _require(model: str) -> None:
    """Check that the token of the client is for a model."""
    if (grant := GRANT.get()) is not None:
        grant.require(model)
