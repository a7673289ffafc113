"""A request for texts whose model is known: its requests to the model, and its answer so far."""

import time
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from app.core.config.text_models import Task, TextModel
from app.core.errors import InferError
from app.core.inference import Sink
from app.core.observability.generation import GenerationFigures, Operation, Times, Tokens
from app.core.system.random_ids import random_id
from app.core.tensors import InferRequest, InferResponse
from app.ingress.openai.catalog import Found
from app.protocol.openai.errors import invalid
from app.protocol.openai.fields import Fields
from app.protocol.openai.logprobs import read_logprobs
from app.protocol.openai.responses.answers import ResponseForm
from app.protocol.openai.responses.requests import read_response
from app.protocol.openai.texts.answers import CHAT, COMPLETION, Form, Head, Part, fingerprint, usage_of
from app.protocol.openai.texts.chat import read_chat
from app.protocol.openai.texts.choices import Choice
from app.protocol.openai.texts.completions import read_completion
from app.protocol.openai.texts.requests import Defaults, TextRequest
from app.protocol.openai.texts.tensors import Piece, model_request, read_piece, stops_itself
from app.protocol.openai.tool_choice import Tools
from app.protocol.openai.tools.deltas import CallReader

_NOTHING: Final[Sequence[Any]] = ()


class Kind(NamedTuple):
    """What a path is for.

    Attributes:
        task: of models.
        operation: in metrics and traces.
        read: reads a request.
        form: returns what its answer looks like.
    """

    task: Task
    operation: str
    read: Callable[[Fields, TextModel, frozenset[str], Defaults], TextRequest]
    form: Callable[[TextRequest], Form]


CHATS: Final = Kind("chat", "chat", read_chat, lambda _: CHAT)
COMPLETIONS: Final = Kind("completions", "text_completion", read_completion, lambda _: COMPLETION)
RESPONSES: Final = Kind("chat", "chat", read_response, lambda request: ResponseForm(request.echoed))


class Span:
    """The attributes of the span of one request to a model; prompts and texts are none.

    Args:
        attributes: that are known.
        output: of text.
    """

    def __init__(self, attributes: dict[str, str | int], output: str) -> None:
        self.attributes = attributes
        self._output = output

    def deliver(self, sink: Sink, response: InferResponse) -> None:
        """Add what a response tells, and hand it on."""
        found = self.attributes
        if response.model_name:
            found["gen_ai.response.model"] = response.model_name
        try:
            piece = read_piece(response, self._output)
        except InferError:  # which the answer tells
            piece = Piece(b"")
        if piece.input_tokens is not None:
            found["gen_ai.usage.input_tokens"] = piece.input_tokens
        if piece.output_tokens is not None:
            name = "gen_ai.usage.output_tokens"
            found[name] = int(found.get(name, 0)) + piece.output_tokens
        sink(response)


class Job:
    """A request whose model is known, and its answer so far.

    Args:
        kind: of the request.
        found: the model.
        request: what is asked for.
        max_tool_bytes: bytes of the calls in a text.

    Attributes:
        choices: of the answer, those of the first prompt first.
        readers: take calls of tools out of them.
    """

    def __init__(self, kind: Kind, found: Found, request: TextRequest, max_tool_bytes: int) -> None:
        self.form = kind.form(request)
        self.request = request
        self.found = found
        self._operation = kind.operation
        self._begun = self._first = time.monotonic()
        self._version, self._logprobs = "", request.sampling.logprobs
        stops = [] if stops_itself(found.text, found.entry.inputs) else request.sampling.stop
        count = len(request.prompts) * request.choices
        self.choices = [Choice(request.sampling.limit, stops) for _ in range(count)]
        self.readers = [_calls(request.tools, max_tool_bytes) for _ in range(count)]

    def requests(self, request_id: str, limit: int) -> list[InferRequest]:
        """Return the requests to the model.

        Raises:
            OpenAIError: the model cannot have one.
        """
        found, request = self.found, self.request
        entry, inputs = found.entry, tuple(found.entry.inputs.values())
        made, size = list[InferRequest](), 0
        for prompt in request.prompts:
            for number in range(request.choices):
                made.append(
                    model_request(
                        entry.model,
                        found.text,
                        inputs,
                        request,
                        prompt,
                        number,
                        request_id,
                        limit,
                        found.adapter,
                    )
                )
                size += sum(len(tensor.data) for tensor in made[-1].inputs)
                if size > limit and number:  # each has a copy of the prompt
                    raise invalid(f"Invalid 'n': its prompts have more than {limit} bytes together", "n")
        return made

    def head(self, first: InferResponse) -> Head:
        """Return what all of the answer has, by the first response."""
        self._first, self._version = time.monotonic(), first.model_version
        entry = self.found.entry.answering(first.model_version)
        content = entry.content or blake2b(entry.config, digest_size=16).hexdigest()
        answer_id = f"{self.form.prefix}{random_id()}"
        return Head(answer_id, int(time.time()), self.found.name, fingerprint(content))

    def receive(self, index: int, response: InferResponse) -> Part:
        """Return what a choice gets by a response.

        Raises:
            InferError: the model failed, or its text is none.
        """
        if response.failure is not None:
            raise response.failure.error()
        choice, reader = self.choices[index], self.readers[index]
        piece, offset = read_piece(response, self.found.text.output), choice.length
        text, calls, drawn = choice.push(piece, response.final), _NOTHING, _NOTHING
        if reader is not None:
            text, calls = reader.push(text, bool(choice.reason))
            if reader.too_long and not choice.reason:
                choice.end("length", response.final)
        if self._logprobs is not None:
            drawn = read_logprobs(piece.logprobs, self._logprobs)
            offset += len(self.opening(index))
        return Part(index, text, choice.reason and self.reason(index), drawn, offset, calls)

    def reason(self, index: int) -> str:
        """Return why a choice ended; "" before that."""
        reason, reader, tools = self.choices[index].reason, self.readers[index], self.request.tools
        return reason if reader is None or tools is None else tools.reason(reason, len(reader.calls))

    def opening(self, index: int) -> str:
        """Return what precedes the text of a choice."""
        request = self.request
        return request.prompts[index // request.choices] if request.echo else ""

    def span(self) -> Span:
        """Return the attributes of a request to the model."""
        named: dict[str, str | int] = {
            "gen_ai.operation.name": self._operation,
            "gen_ai.provider.name": "nereid",
            "gen_ai.request.model": self.found.name,
        }
        return Span(named, self.found.text.output)

    @property
    def ended(self) -> bool:
        """Whether all choices have ended."""
        return all([choice.reason for choice in self.choices])

    def usage(self) -> dict[str, Any]:
        """Return the tokens of the answer."""
        return usage_of(self.choices, self.request.choices)

    def count(self, figures: GenerationFigures) -> None:
        """Count the answer, which is complete."""
        usage = self.usage()
        cached = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
        tokens = Tokens(usage["prompt_tokens"], usage["completion_tokens"], cached)
        operation = Operation(self.found.entry.model, self._version, self._operation)
        times = Times(self._begun, self._first, time.monotonic())
        figures.of(operation).count(times, tokens, self.request.stream)


def _calls(tools: Tools | None, limit: int) -> CallReader | None:
    parser = tools.parser(limit) if tools is not None else None
    return None if tools is None or parser is None else CallReader(parser, tools.form)
