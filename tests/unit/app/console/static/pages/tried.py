"""A server of small models of every kind, in a process without Ray, and a console over it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from app.console.server import Console, Place
from app.console.upstream import Upstream
from app.core.datatypes import DATATYPES
from app.transport.loops.thread import LoopThread
from tests.server import EngineServer

HOSTILE: Final = "<img src=x onerror=alert(1)><script>alert(2)</script>"
TYPES: Final = tuple(DATATYPES)

_HEAD: Final = """
import io, json, os, time
import numpy as np
import triton_python_backend_utils as pb

def tensor(request, name):
    return pb.get_input_tensor_by_name(request, name).as_numpy()

def response(**outputs):
    return pb.InferenceResponse([pb.Tensor(name, np.asarray(value)) for name, value in outputs.items()])

class TritonPythonModel:
"""
_IDENTITY: Final = """
name: "NAME" backend: "identity" max_batch_size: 0
input { name: "INPUT0" data_type: TYPE dims: [ -1 ] }
output { name: "OUTPUT0" data_type: TYPE dims: [ -1 ] }
instance_group { kind: KIND_CPU }
"""
_MEANS: Final = """
    def execute(self, requests):
        return [response(means=tensor(r, "pixels").mean((2, 3)).astype(np.float32)) for r in requests]
"""
_NEGATIVE: Final = """
    def execute(self, requests):
        return [response(negative=255 - tensor(r, "frame")) for r in requests]
"""
_FILE: Final = """
    def execute(self, requests):
        answers = []
        for r in requests:
            data = tensor(r, "image").reshape(-1)[0]
            scores = np.zeros((1, 3), np.float32)
            scores[0, 1], scores[0, 2] = 0.75, 0.25
            size = np.array([[len(data)]], np.int64)
            answers.append(response(scores=scores, size=size, again=np.array([[data]], object)))
        return answers
"""
_SOUND: Final = """
    def execute(self, requests):
        return [response(level=np.abs(tensor(r, "sound")).max(1, keepdims=True)) for r in requests]
"""
_SUM: Final = """
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        answers = []
        for r in requests:
            key, flags = r.correlation_id(), r.flags()
            value = 0 if flags & pb.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START else self.sums[key]
            self.sums[key] = value + int(tensor(r, "INPUT").sum())
            answers.append(response(SUM=np.array([[self.sums[key]]], np.int32)))
        return answers
"""
_WORDS: Final = """
    def execute(self, requests):
        for r in requests:
            sender = r.get_response_sender()
            given = {each.name(): each.as_numpy().reshape(-1)[0].decode() for each in r.inputs()}
            chat = json.loads(given.get("messages", "{}")).get("messages")
            for word in (chat[-1]["content"] if chat else given["prompt"]).split(" "):
                if word == "fail":
                    raise_ = pb.TritonError("<b>no</b> more words")
                    sender.send(pb.InferenceResponse([], raise_))
                    break
                sender.send(response(word=np.array([word + " "], object)))
            sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
_REFUSES: Final = f"""
    def execute(self, requests):
        return [pb.InferenceResponse([], pb.TritonError("refused: {HOSTILE}")) for _ in requests]
"""
_BROKEN: Final = f"""
    def initialize(self, args):
        raise RuntimeError("No module named 'missing' {HOSTILE}")

    def execute(self, requests):
        pass
"""
_DOUBLES: Final = """
    def execute(self, requests):
        return [response(Y=2 * tensor(r, "X")) for r in requests]
"""
_ASKS: Final = """
    def execute(self, requests):
        return [response(positive=np.array([[tensor(r, "X").sum() > 0]])) for r in requests]
"""

_CPU: Final = "instance_group { kind: KIND_CPU }"


def _tensors(inputs: Mapping[str, str], outputs: Mapping[str, str]) -> str:
    rows = [("input", each) for each in inputs.items()] + [("output", each) for each in outputs.items()]
    return "\n".join(f'{side} {{ name: "{name}" data_type: {kind} }}' for side, (name, kind) in rows)


def _dims(kind: str, *dims: int, more: str = "") -> str:
    return f"TYPE_{kind} dims: {list(dims)} {more}"


_SEQUENCE: Final = "sequence_batching { max_sequence_idle_microseconds: 60000000 }"
_ENSEMBLE: Final = """
name: "sometimes" platform: "ensemble" max_batch_size: 8
input { name: "value" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "double" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "fourfold" data_type: TYPE_FP32 dims: [ 1 ] }
parameters { key: "step.2.when" value { string_value: "good" } }
ensemble_scheduling {
  step { model_name: "asks" model_version: -1 input_map { key: "X" value: "value" }
         output_map { key: "positive" value: "good" } }
  step { model_name: "doubles" model_version: -1 input_map { key: "X" value: "value" }
         output_map { key: "Y" value: "double" } }
  step { model_name: "doubles" model_version: -1 input_map { key: "X" value: "double" }
         output_map { key: "Y" value: "fourfold" } }
}
"""
_SOURCES: Final[Mapping[str, tuple[str, str]]] = {
    "means": (
        "max_batch_size: 4\n"
        + _tensors(
            {"pixels": _dims("FP32", 3, 32, 32, more="format: FORMAT_NCHW")}, {"means": _dims("FP32", 3)}
        ),
        _MEANS,
    ),
    "negative": (
        _tensors({"frame": _dims("UINT8", -1, -1, 3)}, {"negative": _dims("UINT8", -1, -1, 3)}),
        _NEGATIVE,
    ),
    "picture_file": (
        "max_batch_size: 4\n"
        + _tensors(
            {"image": _dims("STRING", 1)},
            {
                "scores": _dims("FP32", 3, more='label_filename: "labels.txt"'),
                "size": _dims("INT64", 1),
                "again": _dims("STRING", 1),
            },
        ),
        _FILE,
    ),
    "hears": (_tensors({"sound": _dims("FP32", 1, -1)}, {"level": _dims("FP32", 1, 1)}) + _SEQUENCE, _SOUND),
    "sums": (
        "max_batch_size: 4\n"
        + _tensors({"INPUT": _dims("INT32", 1)}, {"SUM": _dims("INT32", 1)})
        + _SEQUENCE,
        _SUM,
    ),
    "words": (
        _tensors(
            {"prompt": _dims("STRING", 1), "messages": _dims("STRING", 1, more="optional: true")},
            {"word": _dims("STRING", 1)},
        )
        + "model_transaction_policy { decoupled: true }"
        + """parameters { key: "openai" value { string_value: '{"format": "text"}' } }""",
        _WORDS,
    ),
    "refuses": (_tensors({"X": _dims("FP32", 1)}, {"Y": _dims("FP32", 1)}), _REFUSES),
    "broken": (_tensors({"X": _dims("FP32", 1)}, {"Y": _dims("FP32", 1)}), _BROKEN),
    "doubles": (
        "max_batch_size: 8\n" + _tensors({"X": _dims("FP32", 1)}, {"Y": _dims("FP32", 1)}),
        _DOUBLES,
    ),
    "asks": (
        "max_batch_size: 8\n" + _tensors({"X": _dims("FP32", 1)}, {"positive": _dims("BOOL", 1)}),
        _ASKS,
    ),
}


def write_models(repository: Path) -> None:
    """Write an identity of each data type, and a model of each kind that the form knows."""
    for row in DATATYPES.values():
        name = f"identity_{row.name.lower()}"
        _write(repository / name, _IDENTITY.replace("NAME", name).replace("TYPE", row.config_name))
    for name, (config, source) in _SOURCES.items():
        _write(repository / name, f'name: "{name}" backend: "python"\n{config}\n{_CPU}', _HEAD + source)
    (repository / "picture_file" / "labels.txt").write_text("none\n<b>cat</b>\ndog\n")
    _write(repository / "sometimes", _ENSEMBLE)


def _write(folder: Path, config: str, source: str = "") -> None:
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(config)
    if source:
        (folder / "1" / "model.py").write_text(source)


class Tried:
    """A server in a process without Ray, and a console over it in this one.

    Args:
        directory: for the models, and the server's log.
    """

    def __init__(self, directory: Path) -> None:
        write_models(directory / "models")
        flags = [f"--model-repository={directory / 'models'}", "--load-model=*", "--strict-readiness=false"]
        flags.append("--allow-openai=true")
        self.server = EngineServer(flags, directory / "log", mode="explicit").start()
        self._loop = LoopThread("console")
        self._console = Console(Upstream(f"http://{self.server.http_url}"), Place(port=0))
        port = self._loop.call(self._console.start())
        self.url = f"http://127.0.0.1:{port}/"

    def close(self) -> None:
        """Stop both."""
        self._loop.call(self._console.stop())
        self._loop.stop()
        self.server.stop()
