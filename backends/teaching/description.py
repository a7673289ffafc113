"""What the server knows of the backends of Triton's that teach how one is written."""

from typing import Final

from backends.description import BackendDescription

BACKENDS: Final = (
    BackendDescription(name="identity", backend="identity:IdentityBackend"),
    BackendDescription(name="repeat", backend="repeat:RepeatBackend"),
    BackendDescription(name="square", backend="square:SquareBackend"),
    BackendDescription(name="sequence", backend="sequence:SequenceBackend"),
    BackendDescription(name="dyna_sequence", backend="sequence:DynaSequenceBackend"),
    BackendDescription(name="iterative_sequence", backend="iterative_sequence:IterativeSequenceBackend"),
)
