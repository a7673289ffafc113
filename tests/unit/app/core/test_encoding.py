"""Nothing that reports a failure may fail, whatever a model, a client or the name of a file says."""

import ast
import json
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from app.access.audit import Audit
from app.core.encoding import to_json, to_msgpack
from app.core.errors import (
    MAX_MESSAGE,
    ErrorCode,
    Failure,
    InferError,
    encodable,
    internal,
    shortened,
    text_of,
)
from app.core.observability.log import VERBATIM, LogConfig, TritonFormatter, configure_logging
from app.core.rollout.status import RolloutEvent, RolloutState
from app.core.tensors import InferRequest, InferResponse, Tensor, failed
from app.ingress.tracing.trace_file import encode_header, encode_objects, encode_stamp, encode_tensor
from app.protocol import torchserve
from app.protocol.grpc.framing import trailers
from app.protocol.grpc.responses import encode_stream_failure
from app.protocol.http.v2 import encode_error
from app.routing.table import ModelState, RoutingTable, VersionEntry
from app.routing.table_bytes import decode_table, encode_table
from app.transport.settings import TransportSettings
from app.transport.wire.control_messages import encode_control, encode_failure, encode_value
from app.transport.wire.messages import FrameEncoder
from backends.python.api.errors import TritonError, describe
from backends.python.api.metrics import MetricFamily, snapshot
from backends.python.api.parameters import checked_response
from backends.python.api.pb_utils import TritonModelException
from backends.python.api.tensor import Tensor as PythonTensor
from backends.python.worker.framing import encoded
from deployments.spec import Description, ModelSpec
from tests.unit.test_imports import ROOT

ENCODERS = {f"msgspec.{kind}.{what}" for kind in ("json", "msgpack") for what in ("encode", "Encoder")}
PRODUCT = ("app", "backends", "deployments", "nereid", "client/nereid_client/tools")
HOSTILE = {
    "half of a pair": "hi \ud83d",
    "the other half": "\udc00 hi",
    "a file name": "weights/" + os.fsdecode(b"caf\xe9.bin"),
    "long": "\ud83d" * (MAX_MESSAGE + 1),
    "among others": "Größe \U0001f600 \ud800 \x00 \u2028",
}
SPEC = ModelSpec("m", 1, "/m", b"", "m:1", "", b"key")
REQUEST = InferRequest("m", "1", (), ())
ENTRY = VersionEntry("m", 1, ModelState.UNAVAILABLE, reason="")


def frame(response: InferResponse, settings: TransportSettings) -> bytes:
    queue: list[Any] = []
    FrameEncoder(settings, None).response(queue, 1, response)
    return b"".join(queue)


def log_line(text: str, **fields: Any) -> bytes:
    record = logging.LogRecord("app", logging.ERROR, "file.py", 1, "%s", (text,), None)
    record.__dict__.update(fields)
    return TritonFormatter().format(record).encode()


def log_with_traceback(text: str) -> bytes:
    try:
        raise ValueError(text)
    except ValueError as error:
        return log_line("failed", exc_info=(type(error), error, error.__traceback__))


REPORTS: dict[str, Callable[[str], bytes]] = {
    "failure in a frame": lambda text: frame(failed(internal(text)), TransportSettings()),
    "failure in a frame, by Python": lambda text: frame(
        failed(RuntimeError(text)), TransportSettings(data_plane="python")
    ),
    "failure of a control call": lambda text: encode_failure(Failure(ErrorCode.INTERNAL, text)),
    "answer of a control call": lambda text: encode_value({text: [text, Failure(ErrorCode.INTERNAL, text)]}),
    "control call": lambda text: encode_control("verb", (text,)),
    "description of a load": lambda text: to_msgpack(Description(SPEC, error=text)),
    "routing table": lambda text: encode_table(
        RoutingTable(entries=(msgspec.structs.replace(ENTRY, reason=text),))
    ),
    "event of a rollout": lambda text: to_json(RolloutEvent(1.0, RolloutState.FAILED, 1.0, text, text)),
    "HTTP": encode_error,
    "gRPC trailers": lambda text: trailers(13, text),
    "gRPC trailers of a failure": lambda text: trailers(13, Failure(ErrorCode.INTERNAL, text).message),
    "gRPC stream": lambda text: encode_stream_failure(REQUEST, Failure(ErrorCode.INTERNAL, text), True),
    "TorchServe": lambda text: torchserve.encode_failure(503, text),
    "log": log_line,
    "log, verbatim": lambda text: log_line(text, **VERBATIM),
    "log, with a traceback": log_with_traceback,
    "trace": lambda text: encode_objects(
        (
            encode_header(1, text, "1", text),
            encode_stamp(1, (text, 1)),
            encode_tensor(1, text, Tensor(text, "INT8", (1,), b"1")),
        )
    ),
    "link to a worker": lambda text: encoded({"error": text}),
    "exception of a model": lambda text: describe(ValueError(text), "/").encode(),
    "error of a model": lambda text: TritonError(text).message().encode(),
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_every_report_can_say_every_text(report: Callable[[str], bytes], text: str) -> None:
    report(text).decode("utf-8", "replace")


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_audit_and_log_files_keep_lines_with_every_text(text: str, tmp_path: Path) -> None:
    path = tmp_path / "audit"
    for where in (str(path), ""):
        Audit(where).write(
            protocol="http", who=text, peer="", action="load", subject=text, outcome="failed", reason=text
        )
    assert json.loads(path.read_bytes())["who"] == encodable(text)
    log = tmp_path / "log"
    configure_logging(LogConfig(log_file=str(log)))
    try:
        logging.getLogger("app.test").error("failed: %s", text)
    finally:
        configure_logging(LogConfig())
    assert "failed: " in log.read_text(encoding="utf-8")


def test_escapes_tell_what_was_there() -> None:
    assert encodable("hi \ud83d") == "hi \\ud83d"
    assert encodable(os.fsdecode(b"\xff")) == "\\udcff"
    assert encodable("Größe \U0001f600") == "Größe \U0001f600"
    assert InferError(ErrorCode.INTERNAL, "\ud83d").message == "\\ud83d"
    assert Failure(ErrorCode.INTERNAL, "\ud83d").message == "\\ud83d"
    assert len(shortened("\ud83d" * MAX_MESSAGE)) == MAX_MESSAGE
    assert b"hi \\\\ud83d" in encode_error("hi \ud83d")


def test_table_with_a_hostile_reason_arrives_whole() -> None:
    entry = msgspec.structs.replace(ENTRY, config=b"\x00\xff", reason="bad \udcff")
    table = RoutingTable(7, entries=(entry, ENTRY))
    assert decode_table(encode_table(table)).entries == (
        msgspec.structs.replace(entry, reason="bad \\udcff"),
        ENTRY,
    )


class Mute(Exception):
    """An exception that cannot say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_exception_without_a_text_is_named() -> None:
    assert text_of(Mute()) == ""
    assert Failure.from_exception(Mute()).message == "Mute"
    assert describe(Mute(), "/").startswith("Mute: \n")


def test_errors_of_models_take_strings_alone() -> None:
    assert TritonError(b"caf\xe9").message() == "caf\\xe9"
    with pytest.raises(TypeError):
        TritonError(ValueError("text"))  # type: ignore[arg-type]


class Text(str):
    def encode(self, *_: object) -> bytes:
        raise RuntimeError("not that")


@pytest.mark.parametrize("kind", [np.str_, Text])
@pytest.mark.parametrize("text", ["plain", "hi \ud83d"])
def test_texts_of_other_classes_become_plain(kind: type[str], text: str) -> None:
    made = [
        Failure(ErrorCode.INTERNAL, kind(text)).message,
        TritonError(kind(text)).message(),
        PythonTensor(kind(text), np.zeros(1)).name(),
    ]
    assert {type(each) for each in made} == {str}
    assert made == [encodable(text)] * 3


def test_parameters_of_responses_are_refused_where_the_model_makes_them() -> None:
    for parameters in ({"a": "\ud83d"}, {"\ud83d": 1}):
        with pytest.raises(TritonModelException, match="that UTF-8 can encode"):
            checked_response(parameters)


def test_custom_metrics_have_encodable_texts() -> None:
    family = MetricFamily("hostile_total", "about \ud83d", MetricFamily.COUNTER)
    metric = family.Metric({"file": os.fsdecode(b"\xff")})
    metric.increment(1)
    found = next(each for each in snapshot() if each[0] == "hostile_total")
    assert found[1] == "about \\ud83d"
    assert found[3][0][0] == {"file": "\\udcff"}


REFUSED: dict[str, str] = {
    "app/core/encoding.py": "the encoders themselves",
    "app/transport/wire/messages.py": "requests and responses, which are refused; failures are encodable",
    "app/transport/wire/tensors.py": "numbers of a place in shared memory",
    "app/protocol/http/v2.py": "responses: read from a frame, or checked where they are made",
    "app/protocol/http/generate.py": "responses",
    "app/protocol/http/json_tensors.py": "tensors",
    "app/protocol/tfserving/rest.py": "tensors",
    "app/protocol/openai/embeddings.py": "a request, read from JSON; numbers",
    "app/protocol/openai/rerank.py": "documents of a request, read from JSON",
    "app/protocol/openai/texts/answers.py": "texts of responses, decoded from UTF-8",
    "app/protocol/openai/texts/chat.py": "a request, read from JSON",
    "app/protocol/openai/texts/tensors.py": "a request, read from JSON",
    "app/protocol/openai/responses/answers.py": "texts of responses, decoded from UTF-8",
    "app/protocol/feedback.py": "a request, which is refused",
    "app/protocol/openai/tool_choice.py": "a request, read from JSON",
    "app/access/tokens.py": "what an operator has typed, read from JSON",
    "app/cache/response_cache.py": "responses; an entry that cannot be stored is not",
    "app/ingress/client_memory/region_files.py": "names of regions, read from JSON or a protobuf",
    "nereid/commands/rollout/command.py": "a person's words, who is told at once",
    "app/native/slots.py": "the defaults of a request's fields, for C",
    "app/ray_adapter/claim.py": "numbers and addresses",
    "backends/cpp/backend.py": "requests, which have arrived",
    "backends/cpp/calls.py": "responses, which have arrived",
    "backends/cpp/requests.py": "requests, which have arrived",
    "backends/cpp/strategy.py": "numbers",
    "deployments/builder.py": "a configuration, which was text",
    "deployments/model_store/config_overrides.py": "a configuration, which was text",
    "deployments/rate_limiting/client.py": "names of a configuration",
    "deployments/rate_limiting/wire.py": "names of a configuration",
}
"""Modules that encode by msgspec itself, and why no text there can be without an encoding."""


def encoding_modules() -> Iterator[str]:
    for tree in PRODUCT:
        for path in sorted((ROOT / tree).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Attribute) and ast.unparse(node) in ENCODERS:
                    yield path.relative_to(ROOT).as_posix()


def test_reports_are_encoded_in_one_place() -> None:
    assert set(encoding_modules()) == set(REFUSED)
