"""The responses to one request, and the metrics of all."""

import json
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import triton_python_backend_utils as pb_utils

if TYPE_CHECKING:
    from backends.packaged.llm.generation import Piece

OPTIONS: Final = (
    "return_finish_reason",
    "return_cumulative_logprob",
    "return_logprobs",
    "return_num_input_tokens",
    "return_num_output_tokens",
)
_FINAL: Final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class Metrics:
    """Counts of tokens and of requests."""

    def __init__(self, labels: dict[str, str]) -> None:
        counter, gauge = pb_utils.MetricFamily.COUNTER, pb_utils.MetricFamily.GAUGE
        self._families = [  # a metric is of no use without its family
            pb_utils.MetricFamily(f"llm:{name}", description, kind)
            for name, description, kind in (
                ("prompt_tokens_total", "Number of tokens of prompts.", counter),
                ("generation_tokens_total", "Number of tokens generated.", counter),
                ("num_requests_running", "Number of texts that are being generated.", gauge),
                ("num_requests_waiting", "Number of requests that wait for others to end.", gauge),
            )
        ]
        self.prompt_tokens, self.generation_tokens, self.running, self.waiting = (
            family.Metric(labels) for family in self._families
        )

    def observe(self, running: int, waiting: int) -> None:
        """Set the numbers of texts."""
        self.running.set(running)
        self.waiting.set(waiting)


class Answer:
    """Sends the pieces of a text as they come, or all of it at the end.

    Attributes:
        prompt: the text to continue.
        options: which of `OPTIONS` the request has.
        streams: whether pieces are sent as they come.
        input_tokens: the prompt's; set before the first piece.
    """

    def __init__(self, request: Any, metrics: Metrics) -> None:
        self.prompt = ""
        self.options = dict.fromkeys(OPTIONS, False)
        self.input_tokens = 0
        self._request = request
        self._sender = request.get_response_sender()
        self._metrics = metrics
        self.streams = self._prepends = self._begun = False
        self._cumulative = 0.0
        self._pieces: list[Piece] = []

    def read(self) -> None:
        """Read the request's inputs.

        Raises:
            ValueError: with a text for the client.
        """
        text = pb_utils.get_input_tensor_by_name(self._request, "text_input").as_numpy().item()
        self.prompt = text.decode()
        self.streams = self._flag("stream", False)
        self._prepends = not self._flag("exclude_input_in_output", self.streams)
        if self.streams and self._prepends:
            raise ValueError("When streaming, `exclude_input_in_output` = False is not allowed.")
        self.options = {name: self._flag(name, False) for name in OPTIONS}

    def _flag(self, name: str, default: bool) -> bool:
        tensor = pb_utils.get_input_tensor_by_name(self._request, name)
        return default if tensor is None else bool(tensor.as_numpy().item())

    def generated(self, piece: "Piece") -> None:
        """Send or keep a piece."""
        if not self._begun:
            self._begun = True
            self._metrics.prompt_tokens.increment(self.input_tokens)
        self._metrics.generation_tokens.increment(1)
        self._cumulative += piece.logprob
        self._pieces.append(piece)
        if self.streams or piece.finish_reason:
            self._send(pb_utils.InferenceResponse(self._tensors()), bool(piece.finish_reason))
            self._pieces.clear()

    def failed(self, message: str) -> None:
        """Answer with an error."""
        self._end(f"Error generating stream: {message}", pb_utils.TritonError.INTERNAL)

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

    def _tensors(self) -> list[Any]:
        """Return the outputs for the pieces that were not sent."""
        last = self._pieces[-1]
        text = "".join(piece.text for piece in self._pieces)
        values: dict[str, Any] = {
            "finish_reason": np.array([str(last.finish_reason)], np.object_),
            "cumulative_logprob": np.array([self._cumulative], np.float32),
            "logprobs": np.array([self._logprobs()], np.object_),
            "num_input_tokens": np.array([self.input_tokens], np.uint32),
            "num_output_tokens": np.array([len(self._pieces)], np.uint32),
        }
        wanted = {name: value for name, value in values.items() if self.options[f"return_{name}"]}
        wanted["text_output"] = np.array([(self.prompt if self._prepends else "") + text], np.object_)
        return [pb_utils.Tensor(name, value) for name, value in wanted.items()]

    def _logprobs(self) -> str:
        """Return what vLLM's backend reports of each token, as JSON."""
        if self._pieces[0].logprobs is None:
            return "null"
        tokens = [piece.logprobs or {} for piece in self._pieces]
        return json.dumps([{token: each._asdict() for token, each in known.items()} for known in tokens])
