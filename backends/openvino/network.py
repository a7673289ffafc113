"""Reading a model's file, and fitting the model to its configuration: shapes, batch dimension, data types."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import openvino as ov
from openvino.preprocess import PrePostProcessor

from app.core.config.model_config import datatype_name
from app.core.errors import InferError, internal, invalid_arg, unavailable
from backends.base import Model
from backends.openvino.document import MAX_BYTES, check_xml
from backends.openvino.model_io import (
    TYPES,
    Ports,
    check,
    check_rows,
    configured_dims,
    find,
    read_ports,
)
from backends.openvino.properties import flag
from backends.openvino.runtime import core, explained, load_extension


def read_network(model: Model) -> ov.Model:
    """Read the file of a model, in any format that OpenVINO knows by its name.

    Weights lie beside the file: `model.bin` beside `model.xml`. OpenVINO itself refuses external data of an
    ONNX model outside its directory.

    Raises:
        InferError: UNAVAILABLE without the file, INTERNAL when OpenVINO cannot read it, INVALID_ARG for an
            XML file that is too large or declares entities.
    """
    path = model.artifact("model.xml")
    if not path.exists():
        raise unavailable(f"unable to find '{path}' for model '{model.name}'")
    if path.suffix == ".xml":
        _check_xml(path, int(model.backend_config.get("max-xml-bytes", MAX_BYTES)))
    load_extension(model)
    return read_file(path)


def read_file(path: Path) -> ov.Model:
    """Read a model.

    Raises:
        InferError: INTERNAL when OpenVINO cannot.
    """
    try:
        return core().read_model(path)
    except Exception as error:
        raise explained("reading model", error) from error


def _check_xml(path: Path, limit: int) -> None:
    try:
        check_xml(path, limit, ": --backend-config=openvino,max-xml-bytes=N raises the limit")
    except ValueError as error:
        raise invalid_arg(str(error)) from error


def fit(network: ov.Model, model: Model) -> tuple[ov.Model, int]:
    """Check a model against its configuration, and change it to what the configuration asks for.

    Returns:
        The model, and the number of rows that each execution must have; 0 for any number.

    Raises:
        InferError: INVALID_ARG when they contradict each other, INTERNAL for a shape that the model does not
            allow.
    """
    config = model.config
    reshapes = flag(model, "RESHAPE_IO_LAYERS")
    check(config, read_ports(network), reshapes)
    if reshapes:
        _reshape(network, _configured_shapes(network, model), "setting shape")
    rows = _fit_batch(network, model) if config.max_batch_size else 0
    return _fit_types(network, model, read_ports(network)), rows


def _reshape(network: ov.Model, shapes: Mapping[Any, ov.PartialShape], action: str) -> None:
    try:
        network.reshape(dict(shapes))
    except Exception as error:
        raise explained(action, error) from error


def _configured_shapes(network: ov.Model, model: Model) -> dict[Any, ov.PartialShape]:
    ports, shapes = read_ports(network), {}
    for tensor in model.config.input:
        port = network.inputs[find(ports.inputs, tensor.name, "input").place]
        dims = configured_dims(tensor)
        if any(dim != -1 and dim < 1 for dim in dims):
            raise internal(
                "openvino backend does not support dimensions values other than `-1` or positive integers"
            )
        batch = [port.get_partial_shape()[0]] if model.config.max_batch_size else []
        shapes[port] = ov.PartialShape([*batch, *dims])
    return shapes


def _fit_batch(network: ov.Model, model: Model) -> int:
    """Make the first dimension of every tensor variable, or max_batch_size if the model does not allow that.

    Triton fixes it always; here SKIP_OV_DYNAMIC_BATCHSIZE does.
    """
    if not flag(model, "SKIP_OV_DYNAMIC_BATCHSIZE") and _free_batch(network):
        return 0
    rows = int(model.config.max_batch_size)
    _set_batch(network, rows)
    check_rows(model.config, read_ports(network).outputs)
    return rows


def _free_batch(network: ov.Model) -> bool:
    """Make the first dimensions variable; return whether each output has a row for each row of the inputs.

    An output of which the first dimension was another number has not, though it may vary with the inputs'.
    """
    sizes = {_first(port) for port in (*network.inputs, *network.outputs)} - {-1}
    if not sizes:
        return True
    try:
        _set_batch(network, -1)
    except InferError:
        return False
    return len(sizes) == 1 and all(_first(port) == -1 for port in network.outputs)


def _set_batch(network: ov.Model, rows: int) -> None:
    shapes = {}
    for port in network.inputs:
        shape = port.get_partial_shape()
        shapes[port] = shape if shape.rank.is_dynamic else ov.PartialShape([rows, *list(shape)[1:]])
    _reshape(network, shapes, "setting max batch size")


def _first(port: Any) -> int:
    shape = port.get_partial_shape()
    fixed = not shape.rank.is_dynamic and len(shape) and shape[0].is_static
    return int(shape[0].get_length()) if fixed else -1


def _fit_types(network: ov.Model, model: Model, ports: Ports) -> ov.Model:
    """Convert tensors between the configuration's data types and the model's, as Triton does."""
    steps, changed = PrePostProcessor(network), False
    for direction, tensors, found in (
        ("input", model.config.input, ports.inputs),
        ("output", model.config.output, ports.outputs),
    ):
        for tensor in tensors:
            kind, port = datatype_name(tensor.data_type), find(found, tensor.name, direction)
            if kind != port.config_type:
                getattr(steps, direction)(port.place).tensor().set_element_type(TYPES[kind])
                changed = True
    if not changed:
        return network
    try:
        return steps.build()
    except Exception as error:
        raise explained("apply model preprocessing", error) from error
