"""A model of the in-process API."""

from typing import Any

import msgspec

from app.core.config.json import config_to_json
from app.protocol.http.messages import encode_model_metadata, encode_statistics
from nereid.engine.engine import Engine
from nereid.inprocess.errors import InvalidArgumentError, triton_errors
from nereid.inprocess.inference import AsyncResponseIterator, InferenceRequest, ResponseIterator
from nereid.inprocess.kinds import ModelBatchFlag, ModelTxnPropertyFlag


class Model:
    """A model, or one version of it; made by `Server.model`, and not checked until it is used.

    Attributes:
        name: its name.
        version: its version; -1 for the one that the version policy chooses.
        state: as in the repository's index, where that is known.
        reason: why it is in that state.
    """

    def __init__(
        self,
        engine: Engine,
        name: str,
        version: int = -1,
        state: str | None = None,
        reason: str | None = None,
    ) -> None:
        """Use `Server.model` instead."""
        self._engine = engine
        self.name = name
        self.version = version
        self.state = state
        self.reason = reason

    def __repr__(self) -> str:
        return str({"name": self.name, "version": self.version, "state": self.state})

    @property
    def version_text(self) -> str:
        """The version as requests name it."""
        return "" if self.version < 0 else str(self.version)

    def answering(self, version: int) -> "Model":
        """Return the version that has answered a request."""
        return self if version == self.version else Model(self._engine, self.name, version)

    def create_request(self, **fields: Any) -> InferenceRequest:
        """Return a request of this model; see `InferenceRequest` for the fields."""
        fields.pop("model", None)
        return InferenceRequest(self, **fields)

    def infer(
        self, inference_request: InferenceRequest | None = None, raise_on_error: bool = True, **fields: Any
    ) -> ResponseIterator:
        """Send a request; return an iterator over its responses.

        Args:
            inference_request: the request; by default one of `fields`.
            raise_on_error: whether the iterator raises the error of a response.

        Raises:
            InvalidArgumentError: what no request can have.
        """
        return ResponseIterator(self._engine, self._request(inference_request, fields), raise_on_error)

    def async_infer(
        self, inference_request: InferenceRequest | None = None, raise_on_error: bool = True, **fields: Any
    ) -> AsyncResponseIterator:
        """Send a request; return an asynchronous iterator over its responses. See `infer`."""
        return AsyncResponseIterator(self._engine, self._request(inference_request, fields), raise_on_error)

    def _request(self, given: InferenceRequest | None, fields: dict[str, Any]) -> InferenceRequest:
        if given is not None:
            return given
        try:
            return self.create_request(**fields)
        except TypeError as error:
            raise InvalidArgumentError(str(error)) from None

    def ready(self) -> bool:
        """Return whether the model could be called.

        Raises:
            NotFoundError: there is no such model.
        """
        with triton_errors():
            return self._engine.ready(self.name, self.version_text)

    def metadata(self) -> dict[str, Any]:
        """Return name, versions, platform, inputs and outputs."""
        service = self._engine.service
        with triton_errors():
            found = self._engine.on_loop(lambda: service.model_metadata(self.name, self.version_text))
        decoded: dict[str, Any] = msgspec.json.decode(encode_model_metadata(found))
        return decoded

    def config(self, config_version: int = 1) -> dict[str, Any]:
        """Return the complete configuration; there is one version of the format, 1."""
        if config_version != 1:
            raise InvalidArgumentError(f"model configuration version {config_version} not supported")
        with triton_errors():
            return config_to_json(self._engine.config(self.name, self.version_text))

    def statistics(self) -> dict[str, Any]:
        """Return the counters of the statistics extension."""
        with triton_errors():
            found = self._engine.statistics(self.name, self.version_text)
        decoded: dict[str, Any] = msgspec.json.decode(encode_statistics(found))
        return decoded

    def batch_properties(self) -> ModelBatchFlag:
        """Return whether the first dimension of its tensors is a batch dimension."""
        with triton_errors():
            batched = self._engine.entry(self.name, self.version_text).batched
        return ModelBatchFlag.FIRST_DIM if batched else ModelBatchFlag.UNKNOWN

    def transaction_properties(self) -> ModelTxnPropertyFlag:
        """Return whether a request may have any number of responses."""
        with triton_errors():
            decoupled = self._engine.entry(self.name, self.version_text).decoupled
        return ModelTxnPropertyFlag.DECOUPLED if decoupled else ModelTxnPropertyFlag.ONE_TO_ONE
