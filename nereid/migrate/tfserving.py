"""TensorFlow Serving: a `--model_config_file`, a model's directory, or a directory of models."""

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc

from app.core.datatypes import DATATYPES as V2_TYPES
from app.protocol.message_pool import MessagePool
from app.protocol.tfserving.messages import DATATYPES, message_class
from app.protocol.tfserving.signature import DEFAULT, LABELS
from nereid.migrate.documents import MAX_TEXT
from nereid.migrate.plan import (
    Found,
    Item,
    MigratedModel,
    MigrationError,
    attempt,
    files_below,
    may_be,
    model_name,
    read_bounded,
)

_MAX_GRAPH: Final = 2 << 30
_MOST: Final = 1 << 30
SAVED_MODEL: Final = "saved_model.pb"
_WARMUP: Final = "assets.extra/tf_serving_warmup_requests"
_PLATFORMS: Final = ("", "tensorflow")
_INTERNAL: Final = "__saved_model_init_op"
_PACKAGE: Final = "nereid.tfserving"
_POOL: Final = MessagePool(
    _PACKAGE,
    {
        "Latest": "num_versions:uint32=1",
        "All": "",
        "Specific": "versions:*int64=1",
        "Policy": f"latest:{_PACKAGE}.Latest=100 all:{_PACKAGE}.All=101 specific:{_PACKAGE}.Specific=102",
        "ModelConfig": (
            f"name:string=1 base_path:string=2 model_platform:string=4 "
            f"model_version_policy:{_PACKAGE}.Policy=7 version_labels:map<int64>=8"
        ),
        "ModelConfigList": f"config:*{_PACKAGE}.ModelConfig=1",
        "ModelServerConfig": f"model_config_list:{_PACKAGE}.ModelConfigList=1",
        "BatchingParameters": (
            "max_batch_size:google.protobuf.Int64Value=1 batch_timeout_micros:google.protobuf.Int64Value=2 "
            "num_batch_threads:google.protobuf.Int64Value=4 allowed_batch_sizes:*int64=6"
        ),
    },
)


class Batching(NamedTuple):
    """TensorFlow Serving's batching parameters, with its defaults."""

    max_batch_size: int
    timeout_us: int
    threads: int
    notes: tuple[str, ...] = ()


def models(source: Path, batching_file: Path | None = None) -> Iterator[Found]:
    """Return the models of a source.

    Args:
        source: a models.config, a directory with versions, or a directory of such directories.
        batching_file: the file of `--batching_parameters_file`; None without batching.

    Raises:
        MigrationError: it has none.
    """
    batching = _batching(batching_file) if batching_file is not None else None
    for declared in _declared(source):
        yield from attempt(declared.name or "?", partial(_models, declared, batching))


def _declared(source: Path) -> Iterable[Any]:
    """Return the ModelConfig of each model."""
    if source.is_file():
        config = _parsed("ModelServerConfig", source)
        if not config.model_config_list.config:
            raise MigrationError(f"{source} has no model_config_list")
        return list(config.model_config_list.config)
    model_class = _POOL.message_class("ModelConfig")
    if versions_of(source):
        return [model_class(name=source.resolve().name, base_path=str(source))]
    found = [path for path in sorted(source.iterdir()) if may_be(versions_of, path)]
    if not found:
        raise MigrationError(f"{source} has no <version>/{SAVED_MODEL}, and no directory in it has")
    return [model_class(name=path.name, base_path=str(path)) for path in found]


def _parsed(name: str, path: Path) -> Any:
    text = read_bounded(path, MAX_TEXT)
    try:
        message = _POOL.message_class(name)()
        # Fields of other parts of TensorFlow Serving, such as logging_config, are in no message here.
        return text_format.Parse(text.decode(), message, allow_unknown_field=True)
    except (text_format.ParseError, ValueError, RecursionError) as error:
        raise MigrationError(f"{path}: {error}") from None


def versions_of(base: Path) -> dict[int, Path]:
    """Return the directories of versions, as TensorFlow Serving finds them."""
    if not base.is_dir():
        return {}
    numbered = (path for path in base.iterdir() if path.name.isdecimal() and path.name.isascii())
    return {int(path.name): path for path in sorted(numbered) if (path / SAVED_MODEL).is_file()}


def _models(declared: Any, batching: Batching | None) -> list[Found]:
    if not declared.name or not declared.base_path:
        raise MigrationError("a model of the configuration has no name or base_path")
    name, base = model_name(declared.name), declared.base_path
    if declared.model_platform not in _PLATFORMS:
        raise MigrationError(f"model '{name}' is of platform '{declared.model_platform}'")
    if "://" in base and not base.startswith("file://"):
        raise MigrationError(f"model '{name}' is at {base}: copy it to a directory first")
    place = Path(base.removeprefix("file://"))
    versions = versions_of(place)
    if not versions:
        raise MigrationError(f"model '{name}' has no <version>/{SAVED_MODEL} in {place}")
    made = saved_model(name, versions, batching)
    _set_policy(made.config, declared.model_version_policy)
    if declared.version_labels:
        labels = json.dumps(dict(declared.version_labels))
        made.config.parameters[LABELS].string_value = labels
    return [made]


def saved_model(name: str, versions: Mapping[int, Path], batching: Batching | None = None) -> MigratedModel:
    """Return the model of SavedModels, by version, with the tensors of the highest one.

    Raises:
        MigrationError: one is broken, or has a link that leads out of it.
    """
    signatures = _signatures(versions[max(versions)] / SAVED_MODEL)
    config = mc.ModelConfig(name=name, platform="tensorflow_savedmodel")
    notes = [*_tensors(config, signatures, batched=batching is not None)]
    if batching is not None:
        notes += _set_batching(config, batching)
    items: list[Item] = []
    for version, directory in versions.items():
        items += files_below(directory, f"{version}/model.savedmodel/")
        if (directory / _WARMUP).is_file():
            notes.append(
                f"version {version}: its warm-up requests ({_WARMUP}) are not sent; declare model_warmup"
            )
    return MigratedModel(config, tuple(items), tuple(notes))


def _signatures(path: Path) -> dict[str, Any]:
    """Return the signatures of the serving graph of a SavedModel."""
    try:
        saved = message_class("SavedModel").FromString(read_bounded(path, _MAX_GRAPH))
    except MigrationError:
        raise
    except Exception as error:  # DecodeError, which protobuf's implementations derive from different classes
        raise MigrationError(f"{path} is no SavedModel: {error}") from None
    graphs = [dict(graph.signature_def) for graph in saved.meta_graphs if graph.signature_def]
    return {name: found for name, found in (graphs or [{}])[0].items() if name != _INTERNAL}


def _tensors(config: mc.ModelConfig, signatures: dict[str, Any], batched: bool) -> Iterator[str]:
    """Declare inputs and outputs with the dimensions of the signature; return notes."""
    if not signatures:
        yield "it has no signature: declare inputs and outputs in config.pbtxt"
        return
    name = DEFAULT if DEFAULT in signatures else min(signatures)
    if name != DEFAULT:
        config.parameters["TF_SIGNATURE_DEF"].string_value = name
    if others := sorted(set(signatures) - {name}):
        yield f"only the signature '{name}' is served, not {', '.join(others)}"
    for declared, infos in (
        (config.input, signatures[name].inputs),
        (config.output, signatures[name].outputs),
    ):
        for tensor in sorted(infos):
            made = declared.add(name=tensor)
            datatype = DATATYPES.get(infos[tensor].dtype)
            shape = infos[tensor].tensor_shape
            if datatype is None or shape.unknown_rank:
                yield f"the tensor '{tensor}' has a data type or rank that config.pbtxt must declare"
                continue
            made.data_type = mc.DataType.Value(V2_TYPES[datatype].config_name)
            sizes = [dim.size for dim in shape.dim]
            dims = sizes[1:] if batched else sizes
            made.dims.extend(dims or [1])
            if batched and not dims:
                made.reshape.SetInParent()


def _set_policy(config: mc.ModelConfig, policy: Any) -> None:
    if policy.HasField("all"):
        config.version_policy.all.SetInParent()
    elif policy.specific.versions:
        config.version_policy.specific.versions.extend(policy.specific.versions)
    elif policy.latest.num_versions:
        config.version_policy.latest.num_versions = policy.latest.num_versions


def _batching(path: Path) -> Batching:
    message = _parsed("BatchingParameters", path)
    given = {
        field: getattr(message, field).value
        for field in ("max_batch_size", "batch_timeout_micros", "num_batch_threads")
        if message.HasField(field)
    }
    for field, value in given.items():
        if not 0 <= value <= _MOST:
            raise MigrationError(f"{path}: {field} is {value}, expected a number up to {_MOST}")
    notes: tuple[str, ...] = ()
    if message.allowed_batch_sizes:
        notes = ("allowed_batch_sizes is not carried over: batches are not padded",)
    return Batching(
        given.get("max_batch_size", 1000),
        given.get("batch_timeout_micros", 0),
        given.get("num_batch_threads", 0),
        notes,
    )


def _set_batching(config: mc.ModelConfig, batching: Batching) -> tuple[str, ...]:
    config.max_batch_size = batching.max_batch_size
    config.dynamic_batching.max_queue_delay_microseconds = batching.timeout_us
    if batching.threads:
        config.instance_group.add(count=batching.threads)
    return batching.notes
