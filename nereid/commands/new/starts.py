"""What a model is made of: a file that training has written, a folder, or nothing yet."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tritonclient.grpc import model_config_pb2 as mc

from backends.model_files import FileKind, ModelFile, read_file
from backends.registry.file_kinds import PICKLE, describe, holds_aoti, holds_export, kind_of, server_of
from backends.transformers_files import CONFIG, Architecture, read_architecture
from nereid.migrate.mlserver import python_model
from nereid.migrate.plan import Item, MigratedModel, MigrationError, files_below

_PYTHON: Final = Path(__file__).with_name("python_template.py")
_TRANSFORMERS: Final = Path(__file__).with_name("transformers_template.py")
_OWN: Final = "write a config.pbtxt yourself (docs/models/pytorch.md)"
_EXECUTED: Final = (
    "{name} is a pickle, which was not read: loading the model executes it, in its own process, which needs "
    "scikit-learn, of the version that trained it"
)
_ROWS: Final = 8
"""`max_batch_size` where the files do not say it."""
_NAMES: Final = re.compile(r"[^\w.+-]+")


class Tensor(NamedTuple):
    """An input that a person has told: type as in a configuration, dimensions without that of the rows."""

    name: str
    data_type: str
    dims: tuple[int, ...]


class _Task(NamedTuple):
    """A pipeline of transformers: which architectures it is for, its input and its outputs."""

    name: str
    architectures: re.Pattern[str]
    input: str
    outputs: tuple[Tensor, ...]


_LABEL: Final = (Tensor("LABEL", "TYPE_STRING", (1,)), Tensor("SCORE", "TYPE_FP32", (1,)))
_TASKS: Final = (
    _Task("text-classification", re.compile("ForSequenceClassification$"), "TEXT", _LABEL),
    _Task("image-classification", re.compile("ForImageClassification$"), "IMAGE", _LABEL),
    _Task(
        "token-classification",
        re.compile("ForTokenClassification$"),
        "TEXT",
        (Tensor("ENTITIES", "TYPE_STRING", (1,)),),
    ),
    _Task(
        "feature-extraction",
        re.compile("(Model|ForMaskedLM|ForPreTraining)$"),
        "TEXT",
        (Tensor("EMBEDDING", "TYPE_FP32", (-1,)),),
    ),
)


def name_for(source: Path) -> str:
    """Return a name of a model for a file or folder."""
    stem = source.resolve().name if source.is_dir() else source.name.partition(".")[0]
    return _NAMES.sub("_", stem).lstrip(".+-") or "model"


def from_nothing(name: str) -> MigratedModel:
    """Return a Python model that doubles its input."""
    config = mc.ModelConfig(name=name, backend="python", max_batch_size=_ROWS)
    config.input.add(name="INPUT", data_type=mc.TYPE_FP32, dims=[-1])
    config.output.add(name="OUTPUT", data_type=mc.TYPE_FP32, dims=[-1])
    config.dynamic_batching.SetInParent()
    return MigratedModel(config, (Item("1/model.py", content=_PYTHON.read_bytes()),))


def from_source(name: str, source: Path, inputs: Sequence[Tensor] = ()) -> MigratedModel:
    """Return a model made of a file or folder.

    Args:
        inputs: what a file does not say of itself.

    Raises:
        MigrationError: no model can be made of it; the text says what it is and what helps.
    """
    if not source.exists():
        raise MigrationError(f"there is no '{source}'")
    if (architecture := _architecture(source)) is not None:
        return _transformers(name, source, architecture)
    if (source / "model.py").is_file():
        return MigratedModel(mc.ModelConfig(name=name, backend="python"), tuple(files_below(source, "1/")))
    file = read_file(source)
    kind = kind_of(file)
    if kind is PICKLE:
        made = python_model(name, "sklearn", source)
        made.config.max_batch_size = 1024
        made.config.parameters["outputs"].string_value = "predict,predict_proba"
        return made._replace(notes=(_EXECUTED.format(name=source.name),))
    made_of = _made_of(kind, name, source, file, inputs) if kind is not None else None
    if made_of is None:
        known = describe([file]) or f"nothing is known of a file such as '{source.name}'."
        raise MigrationError(f"no model was made of it: {known} Or begin with code: --python")
    return made_of


def _architecture(source: Path) -> Architecture | None:
    """Return what a folder of transformers says of itself; None if it is none."""
    weights = any(any(source.glob(pattern)) for pattern in ("*.safetensors", "*.bin"))
    if not weights or not (source / CONFIG).is_file():
        return None
    try:
        found = read_architecture(str(source))
    except ValueError as error:
        raise MigrationError(str(error)) from None
    return found if found.names else None


def _transformers(name: str, source: Path, architecture: Architecture) -> MigratedModel:
    folder = tuple(files_below(source, "1/model/"))
    if architecture.generates:
        config = mc.ModelConfig(name=name, backend="llm")
        return MigratedModel(config, (Item("1/model.json", content=b'{"model": "model"}\n'), *folder))
    first = architecture.names[0]
    task = next((task for task in _TASKS if task.architectures.search(first)), None)
    if task is None:
        known = ", ".join(task.name for task in _TASKS)
        raise MigrationError(
            f"'{first}' of {CONFIG} is of no pipeline that is known here ({known}): use --python"
        )
    config = mc.ModelConfig(name=name, backend="python", max_batch_size=32)
    config.input.add(name=task.input, data_type=mc.TYPE_STRING, dims=[1])
    for output in task.outputs:
        config.output.add(name=output.name, data_type=mc.DataType.Value(output.data_type), dims=output.dims)
    config.parameters["task"].string_value = task.name
    config.dynamic_batching.SetInParent()
    code = Item("1/model.py", content=_TRANSFORMERS.read_bytes())
    note = "the server's Python, or the model's own environment, needs transformers and torch"
    return MigratedModel(config, (code, *folder), (note,))


def _onnx(name: str, source: Path, file: ModelFile, inputs: Sequence[Tensor]) -> MigratedModel:
    beside = [path for path in source.parent.glob(f"{source.name}*") if path != source and path.is_file()]
    weights = tuple(Item(f"1/{path.name}", path) for path in beside)  # of a model of more than 2 GB
    return _plain(name, "onnxruntime", (Item("1/model.onnx", source), *weights), inputs)


def _openvino(name: str, source: Path, file: ModelFile, inputs: Sequence[Tensor]) -> MigratedModel:
    if not file.ends(".xml"):
        made = _plain(name, "openvino", (Item(f"1/{source.name}", source),), inputs)
        made.config.default_model_filename = source.name
        return made
    weights = source.with_suffix(".bin")
    if not weights.is_file():
        raise MigrationError(
            f"'{source}' is an OpenVINO model without its weights: there is no '{weights.name}'"
        )
    from nereid.commands.new.signatures import complete_openvino

    made = _plain(name, "openvino", (Item("1/model.xml", source), Item("1/model.bin", weights)), inputs)
    if not inputs:
        complete_openvino(source, made.config)
    return made


def _forest(name: str, source: Path, file: ModelFile, inputs: Sequence[Tensor]) -> MigratedModel:
    if file.ends(".tl"):
        target = "checkpoint.tl"
    elif file.begins(b"tree\nversion=") or file.ends(".lgb", ".lgbm"):
        target = "model.txt"
    elif file.ends(".ubj") or file.begins(b"{L"):
        target = "xgboost.ubj"
    else:
        target = "xgboost.json" if (file.head or b"").lstrip().startswith(b"{") else "xgboost.model"
    return _plain(name, "fil", (Item(f"1/{target}", source),), inputs)


def _pytorch(name: str, source: Path, file: ModelFile, inputs: Sequence[Tensor]) -> MigratedModel:
    from nereid.commands.new.signatures import complete_exported, complete_scripted

    if holds_aoti(file) and not holds_export(file):
        raise MigrationError(
            f"'{source}' is a package of AOTInductor, which does not say what it takes: {_OWN}"
        )
    exported = holds_export(file) or file.ends(".pt2")
    made = _plain(name, "pytorch", (Item("1/model.pt2" if exported else "1/model.pt", source),), inputs)
    complete = complete_exported if exported else complete_scripted
    complete(source, made.config)
    return made


def _saved_model(name: str, source: Path, file: ModelFile, inputs: Sequence[Tensor]) -> MigratedModel:
    folder = source if source.is_dir() else source.parent
    if not (folder / "saved_model.pb").is_file():
        raise MigrationError(f"'{source}' does not say its inputs and outputs: export a SavedModel")
    return _plain(name, "tensorflow", tuple(files_below(folder, "1/model.savedmodel/")), inputs)


def _plain(name: str, backend: str, items: Sequence[Item], inputs: Sequence[Tensor]) -> MigratedModel:
    """Return a model whose backend reads from its file what is not told."""
    config = mc.ModelConfig(name=name, backend=backend)
    for tensor in inputs:
        kind = mc.DataType.Value(tensor.data_type)
        config.input.add(name=tensor.name, data_type=kind, dims=tensor.dims)
    return MigratedModel(config, tuple(items))


_Make = Callable[[str, Path, ModelFile, Sequence[Tensor]], MigratedModel]
_SPECIAL: Final[dict[str, _Make]] = {
    "aoti": _pytorch,
    "export": _pytorch,
    "lightgbm": _forest,
    "onnx": _onnx,
    "openvino": _openvino,
    "paddle": _openvino,
    "pytorch": _pytorch,
    "saved_model": _saved_model,
    "tensorflow_graph": _saved_model,
    "tflite": _openvino,
    "torchscript": _pytorch,
    "treelite": _forest,
    "xgboost": _forest,
}
"""What makes a model, by the name of the kind of file, where it takes more than the file."""


def _made_of(
    kind: FileKind, name: str, source: Path, file: ModelFile, inputs: Sequence[Tensor]
) -> MigratedModel | None:
    """Return a model made of a file that a backend serves as it stands; None for another."""
    if make := _SPECIAL.get(kind.name):
        return make(name, source, file, inputs)
    backend = server_of(kind)
    if backend is None or not backend.formats:
        return None
    return _plain(name, backend.name, (Item(f"1/{backend.formats[0].file_name}", source),), inputs)


def read_tensor(text: str) -> Tensor:
    """Return the tensor of "NAME:TYPE:DIM,DIM", such as x:FP32:3,224,224.

    Raises:
        ValueError: it is none.
    """
    name, data_type, dims = text.split(":")
    kind = f"TYPE_{data_type.upper().removeprefix('TYPE_').replace('BYTES', 'STRING')}"
    mc.DataType.Value(kind)
    if not name:
        raise ValueError(text)
    return Tensor(name, kind, tuple(int(dim) for dim in dims.split(",") if dim))
