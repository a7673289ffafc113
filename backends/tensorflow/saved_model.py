"""Reading a SavedModel without loading it: its graph of a tag, a signature, and the assets it names."""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tensorflow.core.framework import types_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from app.core.errors import internal, invalid_arg
from app.core.files.paths import path_inside
from backends.base import Model
from backends.tensorflow.signature import TYPES, TfSignature, TfTensor, unsupported_type

logger = logging.getLogger(__name__)

_TAG: Final = "serve"
_SIGNATURE: Final = "serving_default"
_NOT_FOR_SERVING: Final = ("__saved_model_init_op", "__saved_model_train_op")


def graph_tag(model: Model) -> str:
    """Return the tag of the graph to load."""
    return model.parameter("TF_GRAPH_TAG") or _TAG


def read_meta_graph(model: Model, directory: Path) -> Any:
    """Return the MetaGraphDef of the model's tag.

    Raises:
        InferError: INTERNAL for a file that is missing or broken, or a tag that it does not have; INVALID_ARG
            for an asset outside of the model's directory.
    """
    path, tag = directory / "saved_model.pb", graph_tag(model)
    try:
        saved = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    except FileNotFoundError:
        raise internal(f"SavedModel file does not exist at: {path}") from None
    except Exception as error:  # protobuf's own errors have no common public class
        raise internal(f"unable to parse '{path}': {error}") from error
    for graph in saved.meta_graphs:
        if list(graph.meta_info_def.tags) == [tag]:
            _check_assets(model, directory, graph)
            return graph
    raise internal(f"unable to load model '{model.name}', expected '{tag}' tag")


def read_signature(model: Model, meta_graph: Any) -> TfSignature:
    """Return the model's signature of a MetaGraphDef.

    Raises:
        InferError: INTERNAL for a signature that it does not have, or a data type that Triton does not.
    """
    definition = meta_graph.signature_def[_signature_name(model, meta_graph)]
    return TfSignature(
        _tensors(model, "input", definition.inputs), _tensors(model, "output", definition.outputs)
    )


def _signature_name(model: Model, meta_graph: Any) -> str:
    named = model.parameter("TF_SIGNATURE_DEF")
    if (named or _SIGNATURE) in meta_graph.signature_def:
        return named or _SIGNATURE
    others: list[str] = sorted(name for name in meta_graph.signature_def if name not in _NOT_FOR_SERVING)
    if named or not others:
        raise internal(f"unable to load model '{model.name}', expected '{named or _SIGNATURE}' signature")
    logger.warning("unable to find serving signature '%s', using signature '%s'", _SIGNATURE, others[0])
    return others[0]


def _tensors(model: Model, direction: str, declared: Mapping[str, Any]) -> dict[str, TfTensor]:
    """Return the tensors by name, which the file keeps in no order."""
    found = {}
    for name in sorted(declared):
        info = declared[name]
        if info.WhichOneof("encoding") != "name":
            raise internal(
                f"unable to process {direction} '{name}' for '{model.name}': sparse and ragged tensors are"
                " not supported"
            )
        kind = types_pb2.DataType.Name(info.dtype)
        if kind not in TYPES:
            raise unsupported_type(model.name, direction, name, kind)
        shape = info.tensor_shape
        dims = None if shape.unknown_rank else tuple(dim.size for dim in shape.dim)
        found[name] = TfTensor(info.name, TYPES[kind], dims)
    return found


def _check_assets(model: Model, directory: Path, meta_graph: Any) -> None:
    """Check that the files that a graph reads at its initialisation are the model's.

    Raises:
        InferError: INVALID_ARG for one that is not.
    """
    for name in _assets(meta_graph):
        path = str(directory / "assets" / name)
        if path_inside(directory, path) is None and path_inside(model.directory, path) is None:
            raise invalid_arg(f"asset '{name}' escapes the directory of model '{model.name}'")


def _assets(meta_graph: Any) -> Iterator[str]:
    yield from (asset.filename for asset in meta_graph.asset_file_def)
    # Where models of TensorFlow 1 keep them.
    for packed in meta_graph.collection_def["saved_model_assets"].any_list.value:
        asset = meta_graph_pb2.AssetFileDef()
        if packed.Unpack(asset):
            yield asset.filename
