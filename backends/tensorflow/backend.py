"""Backend of TensorFlow models, which releases the GIL while a session runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import tensorflow as tf
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import InferError, internal
from backends.array_backend import ArrayBackend
from backends.base import Instance, Model
from backends.load_locks import loading
from backends.operations import operation_libraries
from backends.tensorflow.completion import complete
from backends.tensorflow.graphs import check_files
from backends.tensorflow.options import (
    SAVED_MODEL,
    default_batch,
    instances_per_session,
    model_path,
    platform,
)
from backends.tensorflow.saved_model import read_meta_graph, read_signature
from backends.tensorflow.sessions import Array, Sessions, TfSession, explained
from backends.tensorflow.warmup import warm_up


class TensorFlowBackend(ArrayBackend):
    """Backend `tensorflow`: `model.savedmodel` is a directory, `model.graphdef` a file.

    The instances of a device share one session, with the weights once, unless MAX_SESSION_SHARE_COUNT says
    otherwise.
    """

    def model_initialize(self, model: Model) -> None:
        platform(model.config)
        for library in operation_libraries(model, "tensorflow"):
            _load_operations(library)
        model.state = Sessions(instances_per_session(model))

    def model_finalize(self, model: Model) -> None:
        model.state = None

    def load(self, instance: Instance) -> TfSession:
        sessions: Sessions = instance.model.state
        session = sessions.take(instance)
        if not instance.model.config.model_warmup:
            warm_up(session, instance.model.name)
        return session

    def instance_finalize(self, instance: Instance) -> None:
        session, instance.state = instance.state, None
        if session is not None:
            instance.model.state.release(session)

    def execute(
        self, loaded: TfSession, inputs: Mapping[str, Array], outputs: Sequence[str]
    ) -> dict[str, Array]:
        return loaded.run(inputs, outputs)

    def runs_on_event_loop(self, instance: Instance) -> bool:
        return instance.kind == "CPU"

    @classmethod
    def inspect(cls, model: Model) -> bool:
        """Compare the configuration with the model's; a load would run its graph, which can do anything."""
        check_files(model, cls.auto_complete(model))
        return False

    @classmethod
    def auto_complete(cls, model: Model) -> mc.ModelConfig:
        path = model_path(model)
        if platform(model.config) != SAVED_MODEL or not path.exists():
            return model.config  # a GraphDef does not say what its inputs and outputs are
        try:
            signature = read_signature(model, read_meta_graph(model, path))
        except InferError as error:
            raise internal(
                f"unable to auto-complete model configuration for '{model.name}', failed to load model:"
                f" {error.message}"
            ) from error
        return complete(model.config, signature, default_batch(model.backend_config))


def _load_operations(path: Path) -> None:
    """Load a library of operations.

    Raises:
        InferError: INTERNAL for one that cannot be loaded.
    """
    try:
        with loading("tensorflow"):
            tf.load_op_library(str(path))
    except Exception as error:
        raise explained(error) from error
