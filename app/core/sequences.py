"""Rules of sequences that scheduler and router share; texts are those of Triton's sequence batcher."""

from typing import Final

from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import ErrorCode, Failure, InferError, invalid_arg
from app.core.tensors import SequenceId

END_SEQUENCES: Final = "end_sequences"
"""The control verb by which a replica is told of sequences that have started or ended at another one."""

_MISSING_START: Final = "must specify the START flag on the first request of the sequence"


def keeps_sequences(config: mc.ModelConfig) -> bool:
    """Whether all requests of a sequence must reach one replica; iterative ones have one request."""
    return config.HasField("sequence_batching") and not config.sequence_batching.iterative_sequence


def missing_start(model: str, sequence_id: SequenceId, cause: str = "") -> InferError:
    """Return the error of a request that continues an unknown sequence."""
    text = f"inference request for sequence {sequence_id} to model '{model}' {_MISSING_START}"
    return invalid_arg(f"{text}: {cause}" if cause else text)


def is_missing_start(failure: Failure) -> bool:
    """Whether a replica failed a request because it does not have its sequence."""
    return failure.code is ErrorCode.INVALID_ARG and _MISSING_START in failure.message
