"""Loading a SavedModel or a GraphDef into a session."""

import json
from pathlib import Path
from typing import Any, Final

import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import internal, invalid_arg, unavailable
from app.core.files.paths import path_inside
from backends.base import Model
from backends.declared import controls
from backends.tensorflow.check import check_graph, check_signature, check_types
from backends.tensorflow.options import GRAPHDEF, model_path, platform
from backends.tensorflow.saved_model import graph_tag, read_meta_graph, read_signature
from backends.tensorflow.signature import TensorNames, in_graph

_INIT_OPS: Final = "TF_INIT_OPS_FILE"


def load_graph(model: Model, path: Path, session: Any, clear_devices: bool) -> TensorNames:
    """Load a model into a session, whose graph is the default one, and initialise it.

    Args:
        model: with a complete configuration.
        path: its file or directory.
        session: of an empty graph.
        clear_devices: whether the devices that the graph names do not count.

    Raises:
        InferError: INVALID_ARG or INTERNAL when the model differs from the configuration, or cannot be read.
    """
    check_types(model.config)
    load = _load_graph_def if platform(model.config) == GRAPHDEF else _load_saved_model
    names = load(model, path, session, clear_devices)
    for operation in _init_operations(model):
        session.run(session.graph.get_operation_by_name(operation))
    return names


def check_files(model: Model, config: mc.ModelConfig) -> None:
    """Compare a complete configuration with the model's files, without loading them.

    Raises:
        InferError: as `load_graph`.
    """
    path = model_path(model)
    if not path.exists():
        raise unavailable(f"unable to find '{path}' for model '{model.name}'")
    check_types(config)
    if platform(config) == GRAPHDEF:
        _read_graph_def(config, path)
    else:
        check_signature(config, read_signature(model, read_meta_graph(model, path)))


def _load_saved_model(model: Model, path: Path, session: Any, clear_devices: bool) -> TensorNames:
    signature = read_signature(model, read_meta_graph(model, path))
    check_signature(model.config, signature)
    # Restores variables, and initialises tables by the model's own operations.
    tf.compat.v1.saved_model.load(session, [graph_tag(model)], str(path), clear_devices=clear_devices)
    return TensorNames(
        {name: tensor.tensor for name, tensor in signature.inputs.items()},
        {output.name: signature.outputs[output.name].tensor for output in model.signature.outputs},
    )


def _load_graph_def(model: Model, path: Path, session: Any, clear_devices: bool) -> TensorNames:
    definition = _read_graph_def(model.config, path)
    if clear_devices:
        for node in definition.node:
            node.device = ""
    tf.import_graph_def(definition, name="")
    return TensorNames(
        {name: in_graph(name) for name in _input_names(model)},
        {name: in_graph(name) for name in model.signature.names},
    )


def _read_graph_def(config: mc.ModelConfig, path: Path) -> Any:
    """Read a GraphDef, and compare it with a configuration."""
    definition = graph_pb2.GraphDef()
    try:
        definition.ParseFromString(path.read_bytes())
    except Exception as error:  # protobuf's own errors have no common public class
        raise internal(f"unable to parse '{path}': {error}") from error
    if not definition.node:
        raise internal(f"model {config.name} has an empty network")
    placeholders = {node.name for node in definition.node if node.op == "Placeholder"}
    check_graph(config, placeholders, {node.name for node in definition.node} - placeholders)
    return definition


def _input_names(model: Model) -> list[str]:
    """Return the names of everything that an execution feeds."""
    config = model.config
    names = [tensor.name for tensor in config.input]
    names += [name for name, _ in controls(config)]
    names += [state.input_name for state in config.sequence_batching.state]
    names += [name for batch_input in config.batch_input for name in batch_input.target_name]
    return names


def _init_operations(model: Model) -> list[str]:
    """Return the operations that the model's file of initial operations names.

    Raises:
        InferError: INVALID_ARG for a file that is outside of the model's directory, or has no such list;
            INTERNAL for one that cannot be read.
    """
    name = model.parameter(_INIT_OPS)
    if not name:
        return []
    here = (model.version_directory / name).is_file()
    path = path_inside(model.directory, name, model.version_text if here else "")
    if path is None:
        raise invalid_arg(f"{_INIT_OPS} '{name}' escapes the directory of model '{model.name}'")
    try:
        operations = json.loads(path.read_bytes())["init_ops"]
    except OSError as error:
        raise internal(f"failed to open text file for read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError):
        operations = None
    if not isinstance(operations, list) or not all(isinstance(each, str) for each in operations):
        raise invalid_arg(f"{_INIT_OPS} '{name}' of model '{model.name}' has no list of names 'init_ops'")
    return operations
