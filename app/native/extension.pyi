"""What is compiled from the C files of this folder (setup.py)."""

from typing_extensions import Buffer

from app.core.tensors import InferRequest, InferResponse, RequestedOutput, Tensor

SOURCES: str
"""Digest of the files that it was compiled from."""

class Mapping:
    """A mapped file, which its owner may shorten or remove at any time. It is unmapped when it is dropped."""

    def __init__(self, descriptor: int) -> None:
        """Map all of the file; it stays open while this object lives.

        Raises:
            OSError: it is empty, or cannot be mapped.
        """

    def read(self, into: Buffer, offset: int, /) -> bool:
        """Fill a buffer from an offset; return whether the file has a name and all of these bytes.

        It has to have had them when it was mapped.
        """

    def write(self, data: Buffer, offset: int, /) -> bool:
        """Write a buffer to an offset; return as `read`. The file does not become longer."""

    @property
    def linked(self) -> bool:
        """Whether the file has a name."""

class Messages:
    """Reads and writes the frames of most small messages; see `app/transport/wire/messages.py`.

    A method returns None for any other message, and for one that is malformed.
    """

    def __init__(
        self,
        tensor: type[Tensor],
        output: type[RequestedOutput],
        request: type[InferRequest],
        response: type[InferResponse],
        request_unset: tuple[str, ...],
        response_unset: tuple[str, ...],
        max_meta: int,
        max_tensors: int,
        in_meta: int,
    ) -> None:
        """Use these types, and the limits of a connection.

        Args:
            request_unset, response_unset: fields that have their default values in the messages written.

        Raises:
            TypeError: a type has its fields elsewhere than msgspec puts them.
        """

    def write_request(self, request: InferRequest, stream: int, deadline_us: int, /) -> bytes | None:
        """Return the INFER frame of a request whose tensors are in its meta."""

    def write_response(self, response: InferResponse, stream: int, /) -> bytes | None:
        """Return the RESPONSE frame of a response without failure or parameters, its tensors in its meta."""

    def read_request(self, meta: Buffer, deadline: float, /) -> InferRequest | None:
        """Read the meta of an INFER frame that has no payload."""

    def read_response(self, meta: Buffer, final: bool, /) -> InferResponse | None:
        """Read the meta of a RESPONSE frame that has no payload."""
