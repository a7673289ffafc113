"""Small TensorRT engines, as files of a model repository."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Network = Any
Shapes = dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]


def write(
    folder: Path,
    define: Callable[[Any, Network], None],
    profiles: Sequence[Shapes] = (),
    values: Shapes | None = None,
) -> Path:
    """Build an engine as version 1 of a model in `folder`.

    Args:
        folder: the model's directory.
        define: adds inputs, layers and outputs; gets the module `tensorrt` and the network.
        profiles: low, best and high shapes of inputs.
        values: the same of the values of shape tensors, for every profile.
    """
    import tensorrt as trt

    log = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(log)
    network = builder.create_network(0)
    define(trt, network)
    config = builder.create_builder_config()
    for shapes in profiles:
        profile = builder.create_optimization_profile()
        for name, bounds in shapes.items():
            profile.set_shape(name, *bounds)
        for name, bounds in (values or {}).items():
            profile.set_shape_input(name, *bounds)
        assert config.add_optimization_profile(profile) >= 0
    plan = builder.build_serialized_network(network, config)
    assert plan is not None
    (folder / "1").mkdir(parents=True, exist_ok=True)
    (folder / "1" / "model.plan").write_bytes(bytes(plan))
    return folder


def doubled(trt: Any, network: Network, shape: Sequence[int] = (-1, 16)) -> None:
    """Y = X + X."""
    x = network.add_input("X", trt.float32, tuple(shape))
    y = network.add_elementwise(x, x, trt.ElementWiseOperation.SUM).get_output(0)
    y.name = "Y"
    network.mark_output(y)


def head(trt: Any, network: Network) -> None:
    """Y are as many elements of X as the shape tensor S says."""
    x = network.add_input("X", trt.float32, (12,))
    s = network.add_input("S", trt.int32, (1,))
    layer = network.add_slice(x, (0,), (1,), (1,))
    layer.set_input(2, s)
    y = layer.get_output(0)
    y.name = "Y"
    network.mark_output(y)


def not_zero(trt: Any, network: Network) -> None:
    """Y are the places of X that are not 0: how many depends on the values."""
    x = network.add_input("X", trt.float32, (8,))
    y = network.add_non_zero(x).get_output(0)
    y.name = "Y"
    network.mark_output(y)


def batches(high: int, best: int = 2, low: int = 1) -> Shapes:
    """The shapes that `doubled` may have."""
    return {"X": ((low, 16), (best, 16), (high, 16))}
