"""The responses to one request."""

import json
import time
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import triton_python_backend_utils as pb_utils

if TYPE_CHECKING:
    from backends.packaged.llm.engine.generation import Piece
    from backends.packaged.llm.engine.reading import Reading
    from backends.packaged.llm.metrics import Metrics

OPTIONS: Final = (
    "return_finish_reason",
    "return_cumulative_logprob",
    "return_logprobs",
    "return_num_input_tokens",
    "return_num_output_tokens",
    "return_num_cached_tokens",
)
_FINAL: Final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class Answer:
    """Sends the pieces of a text as they come, or all of it at the end.

    Attributes:
        prompt: the text to continue; "" where there is a chat.
        chat: the JSON of `messages`; "" for none.
        embedding: the JSON of `embedding_request`; "" for none.
        salt: whose beginnings of prompts this one may share: the name of a client's token, "" without.
        options: which of `OPTIONS` the request has.
        streams: whether pieces are sent as they come.
        reading: of the prompt; set before the first piece.
    """

    def __init__(self, request: Any, metrics: "Metrics") -> None:
        self.prompt = self.chat = self.embedding = self.salt = ""
        self.options = dict.fromkeys(OPTIONS, False)
        self.reading: Reading | None = None
        self._request = request
        self._sender = request.get_response_sender()
        self._metrics = metrics
        self.streams = self._prepends = self._begun = False
        self._cumulative = 0.0
        self._submitted = self._latest = time.monotonic()
        self._pieces: list[Piece] = []

    def read(self) -> None:
        """Read the request's inputs.

        Raises:
            ValueError: with a text for the client.
        """
        self.chat, self.salt = self._text("messages"), self._text("cache_salt")
        self.embedding = self._text("embedding_request")
        self.prompt = "" if self.chat else self._text("text_input")
        self.streams = self._flag("stream", False)
        self._prepends = not self._flag("exclude_input_in_output", self.streams or bool(self.chat))
        if self.streams and self._prepends:
            raise ValueError("When streaming, `exclude_input_in_output` = False is not allowed.")
        self.options = {name: self._flag(name, False) for name in OPTIONS}

    def _text(self, name: str) -> str:
        tensor = pb_utils.get_input_tensor_by_name(self._request, name)
        if tensor is None:
            return ""
        given = tensor.as_numpy().item()
        text: str = given if isinstance(given, str) else given.decode()
        return text

    def parameters(self) -> str:
        """Return the sampling parameters, as JSON."""
        given = self._text("sampling_parameters")
        return given or str(self._request.parameters())

    def _flag(self, name: str, default: bool) -> bool:
        tensor = pb_utils.get_input_tensor_by_name(self._request, name)
        return default if tensor is None else bool(tensor.as_numpy().item())

    def generated(self, piece: "Piece") -> None:
        """Send or keep a piece."""
        self._count(piece)
        self._cumulative += piece.logprob
        self._pieces.append(piece)
        if self.streams or piece.finish_reason:
            self._respond(self._text_values(), bool(piece.finish_reason))
            self._pieces.clear()

    def embedded(self, vector: list[float]) -> None:
        """Send a vector."""
        assert self.reading is not None
        self._metrics.prompt_tokens.increment(len(self.reading.prompt))
        self._metrics.request.observe(time.monotonic() - self._submitted)
        vector_text = np.array([json.dumps(vector)], np.object_)
        self._respond({"text_output": vector_text, **self._counts(0)}, True)

    def _count(self, piece: "Piece") -> None:
        assert self.reading is not None
        now = time.monotonic()
        metrics, inputs = self._metrics, len(self.reading.prompt)
        (metrics.next_token if self._begun else metrics.first_token).observe(now - self._latest)
        if not self._begun:
            metrics.prompt_tokens.increment(inputs)
            metrics.input_tokens.observe(inputs)
        metrics.generation_tokens.increment(1)
        if piece.finish_reason:
            metrics.request.observe(now - self._submitted)
            metrics.output_tokens.observe(len(self.reading.tokens) - inputs)
        self._begun, self._latest = True, now

    def failed(self, message: str) -> None:
        """Answer that the model has failed."""
        self._end(f"Error generating stream: {message}", pb_utils.TritonError.INTERNAL)

    def invalid(self, message: str) -> None:
        """Answer that the request is not one that can be answered."""
        self._end(f"Error generating stream: {message}", pb_utils.TritonError.INVALID_ARG)

    def refuse(self) -> None:
        """Answer that too many requests wait."""
        self._end("Exceeds maximum queue size", pb_utils.TritonError.UNAVAILABLE)

    def cancelled(self) -> None:
        """End a request that nobody waits for."""
        self._end("Request was cancelled", pb_utils.TritonError.CANCELLED)

    def is_cancelled(self) -> bool:
        """Whether the client has left."""
        return bool(self._sender.is_cancelled())

    def _end(self, message: str, code: int) -> None:
        self._send(pb_utils.InferenceResponse(error=pb_utils.TritonError(message, code)), True)

    def _send(self, response: Any, final: bool) -> None:
        try:
            self._sender.send(response, flags=_FINAL if final else 0)
        except Exception as error:  # the server has ended the request; the others go on
            pb_utils.Logger.log_verbose(f"a response was not sent: {error}")

    def _text_values(self) -> dict[str, Any]:
        """Return the outputs for the pieces that were not sent."""
        text = "".join(piece.text for piece in self._pieces)
        return {
            "text_output": np.array([(self.prompt if self._prepends else "") + text], np.object_),
            "finish_reason": np.array([str(self._pieces[-1].finish_reason)], np.object_),
            "cumulative_logprob": np.array([self._cumulative], np.float32),
            "logprobs": np.array([self._logprobs()], np.object_),
            **self._counts(len(self._pieces)),
        }

    def _counts(self, generated: int) -> dict[str, Any]:
        assert self.reading is not None
        return {
            "num_input_tokens": np.array([len(self.reading.prompt)], np.uint32),
            "num_output_tokens": np.array([generated], np.uint32),
            "num_cached_tokens": np.array([self.reading.cached], np.uint32),
        }

    def _respond(self, values: dict[str, Any], final: bool) -> None:
        """Send those of the outputs that the request wants."""
        wanted = {name: value for name, value in values.items() if self.options.get(f"return_{name}", True)}
        tensors = [pb_utils.Tensor(name, value) for name, value in wanted.items()]
        self._send(pb_utils.InferenceResponse(tensors), final)

    def _logprobs(self) -> str:
        """Return what vLLM's backend reports of each token, as JSON."""
        if self._pieces[0].logprobs is None:
            return "null"
        tokens = [piece.logprobs or {} for piece in self._pieces]
        return json.dumps([{token: each._asdict() for token, each in known.items()} for known in tokens])
