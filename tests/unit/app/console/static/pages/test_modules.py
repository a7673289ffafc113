"""The pure modules of the pages, compared with numpy and with the server's own readers."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.json import config_to_json
from app.core.datatypes import BY_CONFIG_NAME, DATATYPES
from tests.browser import opened
from tests.server import ROOT
from tests.unit.app.console.running_console import RunningConsole

REPOSITORY = ROOT / "model_repository"


@pytest.fixture(scope="module")
def page(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    console = RunningConsole(tmp_path_factory.mktemp("modules"))
    with opened(browser, f"{console.url}#/nothing", refused=True) as found:
        yield found
    console.close()


def called(page: Any, module: str, function: str, *args: Any) -> Any:
    """Return what a function of a module returns."""
    script = "async ([path, name, args]) => (await import(path))[name](...args)"
    return page.evaluate(script, [f"/{module}.js", function, args])


ENCODED = """async ([datatype, values]) => {
  const { element, encode, decode } = await import("/tensors/datatypes.js");
  const bytes = encode(datatype, values.map((value) => element(datatype, value)));
  const again = encode(datatype, Array.from(decode(datatype, bytes)));
  return [Array.from(bytes), String(bytes) === String(again)];
}"""
NUMBERS = (0, 1, -1, 0.5, 1 / 3, -65504.0, 65503.99, 6e-8, 2.98e-8, 1e-5, 6.1e-5, 6.0975e-5, 2049, 2051, 0.1)


@pytest.mark.parametrize("datatype", [name for name in DATATYPES if name != "BYTES"])
def test_values_become_the_bytes_of_numpy(page: Any, datatype: str) -> None:
    dtype: Any = DATATYPES[datatype].dtype
    values: list[Any] = list(NUMBERS)
    if dtype.kind in "iu" and datatype != "BF16":
        info = np.iinfo(dtype)
        values = [0, 1, int(info.max), int(info.min), 77]
        sent: list[Any] = [str(value) for value in values]
    elif dtype.kind == "b":
        values = sent = [True, False]
    else:
        sent = values
    found, same = page.evaluate(ENCODED, [datatype, sent])
    if datatype == "BF16":
        bits = np.array(values, np.float32).view(np.uint32)
        expected = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    else:
        expected = np.array(values, dtype)
    assert bytes(found) == expected.tobytes()
    assert same


def test_every_half_is_read_and_written(page: Any) -> None:
    halves = np.arange(0, 0x7C00, 7, dtype=np.uint16).view(np.float16)
    found, same = page.evaluate(ENCODED, ["FP16", halves.astype(float).tolist()])
    assert bytes(found) == halves.tobytes() and same


READ = """async ([text, datatype, shape, chosen]) => {
  const { read } = await import("/tensors/values.js");
  try {
    const found = read(text, datatype, shape, chosen);
    return [found.shape, Array.from(found.elements, String)];
  } catch (error) {
    return error.message;
  }
}"""


@pytest.mark.parametrize(
    ("text", "datatype", "shape", "chosen", "expected"),
    [
        ("[[1, 2], [3, 4]]", "INT32", [-1, 2], [1, 2], [[2, 2], ["1", "2", "3", "4"]]),
        ("[1, 2, 3, 4]", "INT32", [-1, 2], [2, 2], [[2, 2], ["1", "2", "3", "4"]]),
        ("7", "INT32", [1], [1], [[1], ["7"]]),
        ("[9223372036854775807]", "INT64", [-1], [1], [[1], ["9223372036854775807"]]),
        ("[]", "INT32", [-1], [0], [[0], []]),
        ("[NaN, -Infinity]", "FP32", [2], [2], [[2], ["NaN", "-Infinity"]]),
        ("[1, 2, 3]", "INT32", [-1, 2], [1, 2], "1 × 2 are 2 values, and there are 3"),
        ("[1, 2, 3]", "INT32", [2], [2], "The input takes 2, and this is 3"),
        ("[[1], [2, 3]]", "INT32", [-1, -1], [1, 1], "Arrays beside each other differ in length"),
        ("[256]", "UINT8", [1], [1], "256 is no UINT8 (0 to 255)"),
        ("[null]", "FP32", [1], [1], "null is no number"),
        ("[1e5]", "FP16", [1], [1], "100000 is too large for FP16 (at most 65504)"),
    ],
)
def test_values_are_read(
    page: Any, text: str, datatype: str, shape: list[int], chosen: list[int], expected: Any
) -> None:
    assert page.evaluate(READ, [text, datatype, shape, chosen]) == expected


def configs() -> list[mc.ModelConfig]:
    found = []
    for path in sorted(REPOSITORY.glob("*/config.pbtxt")):
        found.append(text_format.Parse(path.read_text(), mc.ModelConfig()))
        found[-1].name = path.parent.name
    return found


FULL = """
name: "full \\" \\\\ \\303\\251" backend: "python" max_batch_size: 8
version_policy { specific { versions: [ 1, 3 ] } }
input { name: "x" data_type: TYPE_FP16 dims: [ -1, 2 ] reshape { shape: [ 2 ] } optional: true }
output { name: "TYPE_FP32" data_type: TYPE_STRING dims: [ 1 ] }
instance_group { count: 2 kind: KIND_GPU gpus: [ 0, 1 ]
  rate_limiter { resources { name: "r" global: true count: 4 } priority: 2 } }
dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100 priority_levels: 2
  default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 9 }
  priority_queue_policy { key: 2 value { max_queue_size: 7 } } }
parameters { key: "a \\"key\\"" value { string_value: "KIND_CPU\\n<b>" } }
model_warmup { name: "w" batch_size: 1
  inputs { key: "x" value { data_type: TYPE_FP16 dims: [ 2, 2 ] zero_data: true } } }
model_transaction_policy { decoupled: true }
response_cache { enable: true }
optimization { cuda { graphs: true graph_spec { batch_size: 2 input { key: "x" value { dim: [ 3 ] } } } } }
"""


def test_configuration_is_written_as_the_server_reads_it(page: Any) -> None:
    for config in [*configs(), text_format.Parse(FULL, mc.ModelConfig())]:
        written = called(page, "drawing/config_text", "configText", config_to_json(config))
        assert text_format.Parse(written, mc.ModelConfig()) == config, written


def fields(descriptor: Descriptor, seen: set[str]) -> Iterator[FieldDescriptor]:
    if descriptor.full_name in seen:
        return
    seen.add(descriptor.full_name)
    for field in descriptor.fields:
        yield field
        if field.message_type is not None:
            yield from fields(field.message_type, seen)


def test_fields_of_the_configuration_are_known(page: Any) -> None:
    found = list(fields(mc.ModelConfig.DESCRIPTOR, set()))
    script = "async () => Object.values(await import('/drawing/config_text.js')).map((each) => [...each])"
    script = script.replace("Object.values", "(({ ENUMS, MAPS }) => [ENUMS, MAPS])")
    enums, maps = page.evaluate(script)
    assert set(enums) == {field.name for field in found if field.enum_type is not None}
    assert set(maps) == {
        field.name for field in found if field.message_type and field.message_type.GetOptions().map_entry
    }


def metadata(config: mc.ModelConfig) -> dict[str, Any]:
    batch = [-1] if config.max_batch_size else []

    def tensors(specs: Any) -> list[dict[str, Any]]:
        return [
            {
                "name": spec.name,
                "datatype": datatype(spec.data_type),
                "shape": [*batch, *spec.dims],
            }
            for spec in specs
        ]

    return {"inputs": tensors(config.input), "outputs": tensors(config.output)}


def datatype(number: int) -> str:
    return BY_CONFIG_NAME[mc.DataType.Name(number)].name


KINDS = {
    "centerface": {"pixels": "picture"},
    "efficientnet_ensemble": {"image": "file"},
    "efficientnet_lite0_onnx": {"input": "picture"},
    "faces": {"image": "file"},
    "language": {"text": "text"},
    "magika": {"bytes": "values"},
    "ocr_ensemble": {"image": "file"},
    "ocr_lines": {"picture": "picture", "probability": "picture"},
    "rapidocr_rec": {"x": "picture"},
    "repeat_int32": {"IN": "values", "DELAY": "values", "WAIT": "values"},
    "silero_vad": {"input": "sound", "sr": "values"},
    "simple_string": {"INPUT0": "texts", "INPUT1": "texts"},
    "wine_forest": {"input__0": "values"},
}
FORM = """async ([metadata, config, configs]) => {
  const { formOf } = await import("/tensors/kinds.js");
  return formOf(metadata, config, (name) => configs[name] ?? null);
}"""


@pytest.mark.parametrize("model", KINDS)
def test_form_of_examples(page: Any, model: str) -> None:
    found = {config.name: config for config in configs()}
    others = {name: config_to_json(config) for name, config in found.items()}
    form = page.evaluate(FORM, [metadata(found[model]), others[model], others])
    assert {each["name"]: each["kind"] for each in form["inputs"]} == KINDS[model]
    if model == "efficientnet_ensemble":
        assert form["outputs"][0]["labels"] == "labels.txt"
    if model == "rapidocr_rec":
        assert form["inputs"][0]["picture"] == {"layout": "NCHW", "channels": 3, "height": 48, "width": None}


def test_drawings_have_no_boxes_over_each_other(page: Any) -> None:
    for config in configs():
        if not config.ensemble_scheduling.step:
            continue
        for down in (False, True):
            graph = called(page, "drawing/layers", "graphOf", config_to_json(config))
            plan = called(page, "drawing/layers", "plan", graph, {"down": down})
            boxes = plan["boxes"]
            for place, one in enumerate(boxes):
                assert 0 <= one["x"] <= plan["width"] - one["width"]
                for other in boxes[place + 1 :]:
                    beside = one["x"] + one["width"] <= other["x"] or other["x"] + other["width"] <= one["x"]
                    assert beside or abs(one["y"] - other["y"]) >= min(one["height"], other["height"])
            layers = {box["id"]: box["layer"] for box in boxes}
            assert all(layers[line["from"]] < layers[line["to"]] for line in plan["lines"])
            assert all(math.isfinite(line["x"]) for line in plan["lines"])


def test_paths_of_models_are_quoted(page: Any, tmp_path: Path) -> None:
    request = {
        "url": "http://127.0.0.1:1", "grpc": "127.0.0.1:2", "model": "a'b/\"c", "version": "", "inputs": [],
        "outputs": [], "parameters": {}, "decoupled": False, "sequence": None, "tokens": True,
    }  # fmt: skip
    curl, triton, nereid = called(page, "tensors/snippets", "snippets", request)
    assert "/v2/models/a'\\''b%2F%22c/infer'" in curl["text"]
    assert json.dumps("a'b/\"c") in triton["text"] and "NEREID_TOKEN" in nereid["text"]
