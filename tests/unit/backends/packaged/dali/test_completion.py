"""Completion and check of a configuration by what a DALI pipeline declares."""

from pathlib import Path
from typing import Any

import pytest

from backends.packaged.dali.completion import Described, PipelineTensor, check, complete, is_batched
from backends.python.api.errors import TritonModelException

PIPELINE = Described(
    [PipelineTensor("A", "TYPE_UINT8", 1), PipelineTensor("B", "TYPE_FP32", None)],
    [PipelineTensor("__Copy_1", "TYPE_FP32", 3), PipelineTensor("__Cast_2", "", 1)],
    max_batch_size=16,
    num_threads=2,
)


def declared(
    inputs: list[Any] | None = None, outputs: list[Any] | None = None, **fields: Any
) -> dict[str, Any]:
    given: dict[str, Any] = {"max_batch_size": 0, "input": inputs or [{"name": "B", "dims": [2]}]}
    given["output"] = outputs or [{"name": "O"}, {"name": "P", "data_type": "TYPE_INT8"}]
    return given | fields


def test_complete_fills_what_is_not_declared() -> None:
    config = declared()
    complete(config, PIPELINE, True)
    assert config["input"] == [
        {"name": "B", "dims": [2], "data_type": "TYPE_FP32", "allow_ragged_batch": True},
        {"name": "A", "dims": [-1], "data_type": "TYPE_UINT8", "allow_ragged_batch": True},
    ]
    assert config["output"] == [
        {"name": "O", "data_type": "TYPE_FP32", "dims": [-1, -1, -1]},
        {"name": "P", "data_type": "TYPE_INT8", "dims": [-1]},
    ]
    assert config["max_batch_size"] == 16 and config["dynamic_batching"] == {}


def test_data_type_that_the_pipeline_does_not_declare_is_missing() -> None:
    config = declared(outputs=[{"name": "O"}])
    with pytest.raises(TritonModelException, match='Missing data_type config for "__Cast_2"'):
        complete(config, PIPELINE, True)


def test_complete_keeps_batch_size_and_scheduler() -> None:
    config = declared(max_batch_size=4, sequence_batching={})
    complete(config, PIPELINE, True)
    assert config["max_batch_size"] == 4 and "dynamic_batching" not in config


def test_complete_without_batches_adds_a_dimension() -> None:
    config = declared(inputs=[{"name": "B", "dims": [-1, 2]}])
    complete(config, PIPELINE, False)
    assert config["max_batch_size"] == 0 and "dynamic_batching" not in config
    assert config["input"][1]["dims"] == [-1, -1]


def test_split_outputs_lose_their_outer_axis() -> None:
    config = declared()
    complete(config, PIPELINE.split(["__Copy_1"]), True)
    assert config["output"][0]["dims"] == [-1, -1]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            declared(inputs=[{"name": "C"}]),
            "Configuration file contains config for C but such input is not present in the pipeline.",
        ),
        (
            declared(outputs=[{"name": "O"}] * 3),
            "The number of outputs specified in the DALI pipeline and the configuration file do not match."
            "\nModel config outputs: 3\nPipeline outputs: 2",
        ),
        (
            declared(inputs=[{"name": "A", "data_type": "TYPE_FP32"}, {"name": "B", "dims": [1]}]),
            'Mismatch of data_type config for "A".\nData type defined in config: TYPE_FP32\n'
            "Data type defined in pipeline: TYPE_UINT8",
        ),
        (
            declared(inputs=[{"name": "A", "dims": [1, 2]}, {"name": "B", "dims": [1]}]),
            'Mismatch in number of dimensions for "A"\nNumber of dimensions defined in config: 2\n'
            "Number of dimensions defined in pipeline: 1",
        ),
    ],
)
def test_contradictions_have_the_text_of_triton(config: dict[str, Any], message: str) -> None:
    with pytest.raises(TritonModelException) as caught:
        complete(config, PIPELINE, True)
    assert str(caught.value) == message


def test_check_wants_every_tensor() -> None:
    with pytest.raises(TritonModelException, match=r'Missing config for "A" input\.'):
        check(declared(inputs=[{"name": "B", "data_type": "TYPE_FP32"}]), PIPELINE, True)
    with pytest.raises(TritonModelException, match=r"do not match\.\nModel config outputs: 1"):
        check(declared(outputs=[{"name": "O"}]), PIPELINE, True)


@pytest.mark.parametrize(
    ("text", "batched"),
    [
        ("max_batch_size: 0", False),
        ('name: "x"\n  max_batch_size:0 # none', False),
        ("backend: 'dali' max_batch_size : 0", False),
        ("max_batch_size: 8", True),
        ("# max_batch_size: 0", True),
        ('name: "max_batch_size: 0"', True),
        ("", True),
    ],
)
def test_is_batched_unless_the_file_says_zero(tmp_path: Path, text: str, batched: bool) -> None:
    """The default of a configuration is zero too, so only the file tells."""
    (tmp_path / "config.pbtxt").write_text(text)
    assert is_batched(str(tmp_path)) is batched


def test_is_batched_without_a_file(tmp_path: Path) -> None:
    assert is_batched(str(tmp_path))
