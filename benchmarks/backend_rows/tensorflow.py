"""A dense network beside three forms of a call of TensorFlow: callable, `Session.run`, signature."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

from benchmarks.backends import Call, Row, served
from tests.backends.tensorflow.models import write_digits

CONFIG: Final = """
    name: "m" backend: "tensorflow" platform: "tensorflow_savedmodel" max_batch_size: 64
    input { name: "image" data_type: TYPE_FP32 dims: 64 }
    output { name: "label" data_type: TYPE_INT64 dims: 1 reshape { } }
    output { name: "logits" data_type: TYPE_FP32 dims: 10 }
"""

Bare = Callable[[Path, Any], Call]


def rows() -> Iterable[Row]:
    """Return a row for each form and batch."""
    forms: dict[str, Bare] = {"callable": of_callable, "Session.run": of_session, "signature": of_signature}
    for count in (1, 64):
        for name, bare in forms.items():
            yield Row(f"SavedModel beside {name}, {count} rows", partial(of_digits, bare=bare, count=count))


def of_digits(folder: Path, bare: Bare, count: int) -> tuple[Call, Call]:
    """Serve a dense network of 64, 32 and 10 units."""
    path = folder / "1" / "model.savedmodel"
    write_digits(path)
    image = np.random.default_rng(0).standard_normal((count, 64)).astype(np.float32)
    return served(CONFIG, folder, {"image": image}), bare(path, image)


def of_callable(path: Path, image: Any) -> Call:
    """Call a session's callable, with the backend's threads."""
    session, feed, fetches = _session(path)
    options = config_pb2.CallableOptions(feed=[feed], fetch=fetches)
    call = session._make_callable_from_options(options)
    return lambda: call(image)


def of_session(path: Path, image: Any) -> Call:
    """Call `Session.run`, with the backend's threads."""
    session, feed, fetches = _session(path)
    return lambda: session.run(fetches, {feed: image})


def of_signature(path: Path, image: Any) -> Call:
    """Call the signature as a function, as TensorFlow 2 does, to arrays."""
    signature = tf.saved_model.load(str(path)).signatures["serving_default"]
    return lambda: [tensor.numpy() for tensor in signature(image=tf.constant(image)).values()]


def _session(path: Path) -> tuple[Any, str, list[str]]:
    graph = tf.Graph()
    config = config_pb2.ConfigProto(inter_op_parallelism_threads=-1)
    session = tf.compat.v1.Session(graph=graph, config=config)
    with graph.as_default():
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], str(path))
    signature = loaded.signature_def["serving_default"]
    return session, signature.inputs["image"].name, [each.name for each in signature.outputs.values()]
