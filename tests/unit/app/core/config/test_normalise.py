"""Backend found from the files, and Triton's defaults."""

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.model_config import change_requires_reload, dims_text, input_specs, output_specs
from app.core.config.normalise import refuse_ensemble_backend
from app.core.errors import ErrorCode, InferError
from backends.registry.configuration import infer_backend, normalise
from tests.unit.backend_harness import config as parse


@pytest.mark.parametrize(
    ("given", "listing", "found"),
    [
        ("", {"model.onnx"}, ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
        ("", {"model.onnx/"}, ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
        ("", {"model.pt"}, ("pytorch", "pytorch_libtorch", "")),
        ("", {"model.pt2"}, ("pytorch", "torch_aoti", "model.pt2")),
        ("", {"model.plan", "model.py"}, ("tensorrt", "tensorrt_plan", "model.plan")),
        ("", {"model.py", "notes.txt"}, ("python", "", "model.py")),
        ("", {"model.xml", "model.bin"}, ("openvino", "", "model.xml")),
        ("", {"model.savedmodel/"}, ("tensorflow", "tensorflow_savedmodel", "model.savedmodel")),
        ("", {"model.graphdef"}, ("tensorflow", "tensorflow_graphdef", "model.graphdef")),
        (
            "",
            {"model.savedmodel/", "model.onnx"},
            ("tensorflow", "tensorflow_savedmodel", "model.savedmodel"),
        ),
        ("", {"model.joblib"}, ("joblib", "", "model.joblib")),
        ('platform: "onnxruntime_onnx"', set(), ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
        ('platform: "libtorch"', set(), ("pytorch", "libtorch", "")),
        ('backend: "pytorch" platform: "pytorch_libtorch"', set(), ("pytorch", "pytorch_libtorch", "")),
        ('backend: "pytorch" platform: "torch_aoti"', set(), ("pytorch", "torch_aoti", "model.pt2")),
        ('platform: "torch_aoti"', set(), ("pytorch", "torch_aoti", "model.pt2")),
        ('backend: "onnxruntime"', set(), ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
        ('backend: "pytorch"', {"model.pt2"}, ("pytorch", "torch_aoti", "model.pt2")),
        ('backend: "pytorch"', {"model.pt", "model.pt2"}, ("pytorch", "pytorch_libtorch", "model.pt")),
        ('backend: "pytorch"', set(), ("pytorch", "pytorch_libtorch", "model.pt")),
        ('backend: "pytorch" runtime: "model.py"', {"model.pt"}, ("pytorch", "pytorch_libtorch", "")),
        ('backend: "python"', set(), ("python", "", "model.py")),
        ('backend: "python" platform: "mine"', set(), ("python", "mine", "model.py")),
        ('backend: "identity"', {"model.onnx"}, ("identity", "", "")),
        (
            'backend: "tensorflow"',
            {"model.graphdef"},
            ("tensorflow", "tensorflow_graphdef", "model.graphdef"),
        ),
        ('default_model_filename: "model.pt"', set(), ("pytorch", "pytorch_libtorch", "model.pt")),
        ('default_model_filename: "other.bin"', {"model.onnx"}, ("", "", "other.bin")),
        (
            'backend: "onnxruntime" default_model_filename: "x.onnx"',
            set(),
            ("onnxruntime", "onnxruntime_onnx", "x.onnx"),
        ),
        (
            'backend: "onnxruntime" platform: "pytorch_libtorch"',
            set(),
            ("onnxruntime", "pytorch_libtorch", ""),
        ),
        ('platform: "ensemble"', {"model.onnx"}, ("", "ensemble", "")),
        ('ensemble_scheduling { step { model_name: "a" } }', set(), ("", "ensemble", "")),
    ],
)
def test_backend(given: str, listing: set[str], found: tuple[str, str, str]) -> None:
    result = infer_backend(parse('name: "m" ' + given), listing)
    assert (result.backend, result.platform, result.default_model_filename) == found


def test_backend_from_the_models_name() -> None:
    result = infer_backend(parse('name: "model.identity"'), {"weights"})
    assert (result.backend, result.default_model_filename) == ("identity", "model.identity")


@pytest.mark.parametrize("more", ["", "ensemble_scheduling { step { model_name: 'a' } }"])
def test_ensemble_as_a_backend_is_told_what_it_should_be(more: str) -> None:
    with pytest.raises(InferError) as raised:
        refuse_ensemble_backend(parse(f'name: "e" backend: "ensemble" {more}'))
    assert str(raised.value) == (
        "Ensemble model 'e' must have platform type 'ensemble' and empty backend type: write "
        'platform: "ensemble" in place of backend: "ensemble"'
    )


def test_a_directory_where_a_file_is_expected_is_not_the_model() -> None:
    with pytest.raises(InferError) as caught:
        infer_backend(parse('name: "m"'), {"model.pt/", "model.plan/"})
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert caught.value.message == (
        "Invalid model name: Could not determine backend for model 'm' with no backend in model "
        "configuration. "
        "Expected model name of the form 'model.<backend_name>'."
    )


FILES = (
    "model.savedmodel/",
    "model.graphdef",
    "model.plan",
    "model.onnx",
    "model.xml",
    "model.pt",
    "model.pt2",
    "model.py",
)
"""In the order in which Triton looks for them (and for `model.xml` and `model.pt2`, which stand beside)."""


@pytest.mark.parametrize("place", range(len(FILES)))
def test_the_first_file_says_the_backend(place: int) -> None:
    alone, all_from_there = (
        infer_backend(parse('name: "m"'), files) for files in ({FILES[place]}, set(FILES[place:]))
    )
    assert alone == all_from_there
    assert alone.backend


def test_defaults() -> None:
    given = parse('name: "m" backend: "onnxruntime" max_batch_size: 8 dynamic_batching {}')
    result = normalise(given)
    assert result == parse(
        """
        name: "m" backend: "onnxruntime" max_batch_size: 8
        version_policy { latest { num_versions: 1 } }
        dynamic_batching { preferred_batch_size: 8 }
        optimization { input_pinned_memory { enable: true } output_pinned_memory { enable: true } }
        instance_group { name: "m" kind: KIND_CPU count: 2 }
        """
    )
    assert not given.HasField("version_policy")
    assert normalise(result) == result


@pytest.mark.parametrize(
    ("backend", "group", "gpus", "normalised"),
    [
        ("python", "", [], 'name: "m" kind: KIND_CPU count: 1'),
        ("pytorch", "", [0, 1], 'name: "m" kind: KIND_GPU count: 1 gpus: [ 0, 1 ]'),
        ("onnxruntime", "", [0], 'name: "m" kind: KIND_GPU count: 1 gpus: 0'),
        (
            "onnxruntime",
            "instance_group { kind: KIND_CPU }",
            [0],
            'name: "m_0" kind: KIND_CPU count: 2',
        ),
        ("onnxruntime", "instance_group { count: 3 }", [], 'name: "m_0" kind: KIND_CPU count: 3'),
        ("openvino", "", [0], 'name: "m" kind: KIND_CPU count: 1'),
        ("tensorflow", "", [], 'name: "m" kind: KIND_CPU count: 2'),
        ("fil", "", [], 'name: "m" kind: KIND_CPU count: 1'),
        ("python", "instance_group { gpus: 5 }", [0], 'name: "m_0" kind: KIND_CPU count: 1 gpus: 5'),
        ("python", "instance_group { gpus: 1 }", [0, 1], 'name: "m_0" kind: KIND_GPU count: 1 gpus: 1'),
        ("python", "instance_group { kind: KIND_MODEL }", [0], 'name: "m_0" kind: KIND_MODEL count: 1'),
        ("python", 'instance_group { name: "x" kind: KIND_GPU }', [], 'name: "x" kind: KIND_GPU count: 1'),
    ],
)
def test_instances(backend: str, group: str, gpus: list[int], normalised: str) -> None:
    result = normalise(parse(f'name: "m" backend: "{backend}" {group}'), gpus)
    assert result.instance_group[0] == text_format.Parse(normalised, mc.ModelInstanceGroup())


ON_GPU = "kind: KIND_GPU count: 2"
ON_CPU = "kind: KIND_CPU count: 3"


@pytest.mark.parametrize(
    ("group", "gpus", "preferred", "normalised"),
    [
        ("", [], [ON_GPU, ON_CPU], 'name: "m" kind: KIND_CPU count: 3'),
        ("", [0, 1], [ON_GPU, ON_CPU], 'name: "m" kind: KIND_GPU count: 2 gpus: [ 0, 1 ]'),
        ("", [0, 1], [f"{ON_GPU} gpus: [ 1, 7 ]"], 'name: "m" kind: KIND_GPU count: 2 gpus: 1'),
        ("", [0], ["kind: KIND_AUTO count: 4 gpus: 1"], 'name: "m" kind: KIND_CPU count: 4 gpus: 1'),
        ("", [0], ["kind: KIND_AUTO count: 4", ON_CPU], 'name: "m" kind: KIND_GPU count: 4 gpus: 0'),
        ("", [0], ["kind: KIND_MODEL"], 'name: "m" kind: KIND_MODEL count: 1'),
        ("", [], ["kind: KIND_CPU"], 'name: "m" kind: KIND_CPU count: 2'),
        ("{ kind: KIND_CPU }", [0], [ON_GPU, ON_CPU], 'name: "m_0" kind: KIND_CPU count: 3'),
        ("{ kind: KIND_CPU }", [], [ON_GPU], 'name: "m_0" kind: KIND_CPU count: 2'),
        ("{ kind: KIND_CPU count: 1 }", [], [ON_CPU], 'name: "m_0" kind: KIND_CPU count: 1'),
        ("{ }", [1], [ON_CPU, ON_GPU], 'name: "m_0" kind: KIND_GPU count: 2 gpus: 1'),
        ("{ gpus: 1 }", [0, 1], [f"{ON_GPU} gpus: 0"], 'name: "m_0" kind: KIND_GPU count: 2 gpus: 1'),
        ("{ }", [0, 1], [f"{ON_GPU} gpus: 7", ON_CPU], 'name: "m_0" kind: KIND_GPU count: 1 gpus: [ 0, 1 ]'),
    ],
)
def test_preferred_groups_of_a_backend(
    group: str, gpus: list[int], preferred: list[str], normalised: str
) -> None:
    """As NormalizeInstanceGroup: a backend that prefers nothing of a kind leaves it Triton's count."""
    groups = [text_format.Parse(each, mc.ModelInstanceGroup()) for each in preferred]
    text = f'name: "m" backend: "onnxruntime" {"instance_group" if group else ""} {group}'
    result = normalise(parse(text), gpus, groups)
    assert list(result.instance_group) == [text_format.Parse(normalised, mc.ModelInstanceGroup())]


@pytest.mark.parametrize("group", ["count: 1000000", "count: 600 kind: KIND_GPU gpus: [ 0, 1 ]"])
def test_too_many_instances_are_refused(group: str) -> None:
    """A Python model would have a process for each."""
    with pytest.raises(InferError, match=r"ask for [0-9]+ instances, at most 1024"):
        normalise(parse(f'name: "m" backend: "python" instance_group {{ {group} }}'), [0, 1])


def test_sequence_defaults() -> None:
    result = normalise(parse('name: "m" max_batch_size: 4 sequence_batching { oldest {} }'))
    assert result.sequence_batching.max_sequence_idle_microseconds == 1_000_000
    assert list(result.sequence_batching.oldest.preferred_batch_size) == [4]


def test_no_preferred_size_without_batching() -> None:
    result = normalise(parse('name: "m" dynamic_batching {}'))
    assert list(result.dynamic_batching.preferred_batch_size) == []


def test_an_ensemble_gets_neither_instances_nor_pinned_memory() -> None:
    result = normalise(parse('name: "e" platform: "ensemble" ensemble_scheduling {}'))
    assert not result.instance_group
    assert not result.HasField("optimization")


def test_reload_is_needed_for_all_but_instances_and_versions() -> None:
    old = normalise(parse('name: "m" backend: "python"'))
    new = normalise(
        parse('name: "m" backend: "python" instance_group { count: 4 } version_policy { all {} }')
    )
    assert not change_requires_reload(old, new)
    assert change_requires_reload(old, normalise(parse('name: "m" backend: "python" max_batch_size: 2')))


def test_tensor_specs() -> None:
    config = parse(
        """
        name: "m" max_batch_size: 4
        input {
          name: "A" data_type: TYPE_FP16 dims: [ -1, 6 ] reshape { shape: [ 2, -1, 3 ] } optional: true
        }
        output { name: "B" data_type: TYPE_STRING dims: 1 reshape { shape: [] } label_filename: "l.txt" }
        """
    )
    (a,) = input_specs(config)
    (b,) = output_specs(config)
    assert (a.datatype, a.itemsize, a.dims, a.shape, a.optional) == ("FP16", 2, (-1, 6), (-1, -1, 6), True)
    assert (b.datatype, b.itemsize, b.label_filename, b.optional) == ("BYTES", 0, "l.txt", False)
    assert a.backend_shape((3, 5, 6)) == (3, 2, 5, 3)
    assert a.client_shape((3, 2, 5, 3)) == (3, 5, 6)
    assert (b.backend_shape((3, 1)), b.client_shape((3,))) == ((3,), (3, 1))
    unbatched = input_specs(parse('input { name: "A" data_type: TYPE_INT8 dims: 3 }'))[0]
    assert (unbatched.shape, unbatched.backend_shape((3,))) == ((3,), (3,))


def test_dims_text() -> None:
    assert dims_text((-1, 16)) == "[-1,16]"
    assert dims_text(()) == "[]"
    assert dims_text((10**9000,)) == "[<out of range>]"
