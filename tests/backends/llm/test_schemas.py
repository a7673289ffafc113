"""Texts drawn by schemas: each one that ends is valid, as the jsonschema library judges.

LLM_MODELS names further models, folders with a version 1, with a colon between them: those of real weights.
LLM_SAMPLES says how many texts are drawn of each model, LLM_ENGINE by which engine, whatever model.json says.
"""

import json
import os
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from backends.base import Model
from tests.backends.llm.serving import Load, outputs
from tests.backends.packaged import serve_model
from tests.unit.backend_harness import Call, Served, config, infer

SAMPLES = int(os.environ.get("LLM_SAMPLES", "1000"))
ENGINE = os.environ.get("LLM_ENGINE", "")
ENOUGH = 1000
"""Samples of which some of each schema end, also of a model that knows no JSON."""
AT_ONCE = 64
"""Requests that wait or are continued: the backend's own limit is above it."""
MAX_TOKENS = 100
ENDS_S = 600.0


def closed(required: list[str], **properties: Any) -> dict[str, Any]:
    """Return the schema of an object without other fields."""
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


SHORT = {"type": "string", "maxLength": 8}
SCHEMAS: dict[str, dict[str, Any]] = {
    "nested": closed(
        ["name", "home"],
        name=SHORT,
        home=closed(["town"], town=SHORT, at=closed(["x", "y"], x={"type": "integer"}, y={"type": "number"})),
    ),
    "enums": closed(
        ["colour", "size"],
        colour={"enum": ["red", "green", "blue", None, 7]},
        size={"const": "large"},
        sure={"type": "boolean"},
    ),
    "arrays": {
        "type": "array",
        "minItems": 1,
        "maxItems": 4,
        "items": {"anyOf": [{"type": "integer"}, {"type": "null"}, closed(["a"], a={"type": "boolean"})]},
    },
    "numbers": closed(
        ["age", "share"],
        age={"type": "integer", "minimum": 0, "maximum": 120},
        share={"type": "number", "exclusiveMinimum": -1, "maximum": 1},
        five={"type": "integer", "multipleOf": 5, "minimum": 5, "maximum": 95},
    ),
    "patterns": closed(
        ["code", "day"],
        code={"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3,5}$"},
        day={"type": "string", "format": "date"},  # of its spelling: there is a 2958-02-29
        word={"type": "string", "pattern": "^(old|new) [a-z]+$", "maxLength": 12},
    ),
    "optional": closed(
        [], a={"type": "string"}, b={"type": "integer"}, c={"type": "array", "items": SHORT, "maxItems": 2}
    ),
    "referred": {
        "$defs": {"tree": closed(["v"], v={"type": "integer"}, next={"$ref": "#/$defs/tree"})},
        "$ref": "#/$defs/tree",
    },
    "open": {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]},
}


COMPACT = {"x-guidance": {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}}
"""What llguidance reads of a schema: a model that knows no JSON draws white space for most of its tokens."""


@pytest.fixture(params=["small", *filter(None, os.environ.get("LLM_MODELS", "").split(":"))])
def served(request: pytest.FixtureRequest, load: Load, tmp_path: Path) -> Served:
    if request.param == "small":
        return load("small", {"model": "weights", "max_num_seqs": 8, **by_engine()})
    folder = Path(request.param).resolve()
    if ENGINE:
        folder = with_engine(folder, tmp_path / folder.name)
    model = Model(config(f'name: "{folder.name}" backend: "llm"'), 1, folder)
    return serve_model("llm", model, request.addfinalizer, completed=True)


def by_engine() -> dict[str, str]:
    return {"engine": ENGINE} if ENGINE else {}


def with_engine(model: Path, copy: Path) -> Path:
    """Return a copy of a model, whose files are not copied where they may be linked, for the engine."""
    shutil.copytree(model, copy, copy_function=link)
    arguments = copy / "1" / "model.json"
    given = json.loads(arguments.read_text())
    arguments.unlink()
    arguments.write_text(json.dumps(given | by_engine()))
    return copy


def link(source: str, target: str) -> None:
    """Link a file; copy it to another file system."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def begin(served: Served, number: int, form: dict[str, Any]) -> tuple[str, Call]:
    """Ask for a sample; return the name of its schema and the call."""
    name = [*SCHEMAS][number % len(SCHEMAS)]
    sampling = {
        "temperature": 1,
        "seed": number,
        "max_tokens": MAX_TOKENS,
        "structured_outputs": {"json": SCHEMAS[name] | form},
    }
    texts = {"text_input": "The old man as JSON: ", "sampling_parameters": json.dumps(sampling)}
    arrays: dict[str, Any] = {key: np.array([text], np.object_) for key, text in texts.items()}
    flags = {key: np.array([True]) for key in ("exclude_input_in_output", "return_finish_reason")}
    return name, served(infer(arrays | flags))[0]


@pytest.mark.timeout(3600)  # of real weights, on a busy machine
def test_texts_drawn_by_schemas_are_valid(served: Served) -> None:
    """Those that end with the most tokens say so, and are not whole."""
    form = COMPACT if served.model.config.name == "small" else {}
    ended, cut, seen = Counter[str](), Counter[str](), set[str]()
    judges = {name: Draft202012Validator(schema) for name, schema in SCHEMAS.items()}
    for first in range(0, SAMPLES, AT_ONCE):
        numbers = range(first, min(first + AT_ONCE, SAMPLES))
        calls = [begin(served, number, form) for number in numbers]
        for name, call in calls:
            assert call.finished.wait(ENDS_S)
            found = outputs(call.responses[-1])
            if found["finish_reason"] == "length":
                cut[name] += 1
                continue
            assert found["finish_reason"] == "stop"
            value = json.loads(found["text_output"])
            judges[name].validate(value)
            assert name != "patterns" or re.fullmatch(r"\d{4}(-\d\d){2}", value["day"])
            ended[name] += 1
            seen.add(found["text_output"])
    print(f"{ended.total()} valid, {len(seen)} different: {dict(ended)}; cut by max_tokens: {dict(cut)}")
    assert ended.total() > SAMPLES / 4 and len(seen) > SAMPLES / 8
    assert {*ended} == {*SCHEMAS} or SAMPLES < ENOUGH
