"""What is compiled from the C files of this folder (setup.py)."""

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from typing_extensions import Buffer

from app.core.inference import Call, Cancel, Sink
from app.core.tensors import InferRequest, InferResponse, RegionSlice, RequestedOutput, Tensor

SOURCES: str
"""Digest of the files that it was compiled from."""

class UnaryCalls:
    """Receives and answers the unary calls of gRPC that most are; see `app/ingress/http2`."""

    def __init__(
        self,
        types: tuple[type[Any], ...],
        state: object,
        handlers: dict[str, Any],
        on_cancel: Callable[[], None],
        headers: bytes,
        trailers: bytes,
        static_table: tuple[tuple[str, str], ...],
        huffman: bytes,
        decode_metadata: Callable[[tuple[str, str]], tuple[str, str | bytes]],
        refuse: Callable[[bool], NoReturn],
        decode_request: Callable[[Any, float], InferRequest],
        max_header: int,
        max_calls: int,
        max_streams: int,
        max_buffered: int,
        max_message: int,
        max_control_frames: int,
        stream_window: int,
        connection_window: int,
        max_frame: int,
    ) -> None:
        """Use the slots of these types.

        Args:
            types: of the connection, its reader of frames, its output, keepalive, streams and calls; of
                requests, responses, tensors, requested outputs, places in client memory, heads of calls and
                readers of messages.
            state: what counts calls and buffered bytes.
            handlers: called with a call and its message, by the path of the method.
            on_cancel: what a call calls before it has anything to cancel.
            headers, trailers: header blocks of a successful response.
            static_table, huffman: those of `app/protocol/grpc/header_blocks.py`.
            decode_metadata: decodes an entry whose name ends in `-bin`.
            refuse: raises, called with whether a header list is too large; else a block is malformed.
            decode_request: reads messages that are malformed, wrong or unusual.
            max_header: bytes of a header block beyond which Python judges it.
            stream_window: bytes to receive on a stream; a quarter of them is granted at once.
            connection_window: bytes to receive on a connection before Python looks.

        Raises:
            TypeError: a type lacks a slot.
        """

    def receive(self, connection: Any, data: Buffer, /) -> int:
        """Handle frames as `Http2Connection` does, up to the first that is not among the most common.

        Returns:
            The size of the frames that were handled.

        Raises:
            Http2Error: as the methods of the connection.
        """

    def header_decoder(self) -> HeaderDecoder:
        """Return what decodes the header blocks of a connection."""

    def read(self, data: Buffer, deadline: float, /) -> InferRequest:
        """Read a ModelInferRequest; raises what `decode_request` does."""

    def sink(
        self, otherwise: Callable[..., None], call: Any, entry: Any, request: InferRequest, /
    ) -> Callable[[InferResponse], None]:
        """Return what answers a call with its response.

        Args:
            otherwise: called with the call, the entry, the request and a response that is long or has
                anything unusual.
        """

class HeaderDecoder:
    """Decodes the header blocks of one connection, in place of `HeaderReader`."""

    def read(self, block: bytes, /) -> Any:
        """Decode a block to a `CallHead`; raises what `refuse` does."""

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
        place: type[RegionSlice],
        encode_place: Callable[[RegionSlice], bytes],
        decode_place: Callable[[bytes], RegionSlice],
        request_unset: tuple[str, ...],
        response_unset: tuple[str, ...],
        max_meta: int,
        max_tensors: int,
        in_meta: int,
        place_code: int,
    ) -> None:
        """Use these types, and the limits of a connection.

        Args:
            encode_place, decode_place: encode and decode the place of a tensor in client memory.
            place_code: the type of the msgpack extension that has it.
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

class ClientEnd:
    """The client's end of a channel: sends requests, and hands responses to the sinks of their calls.

    It does what `app/transport/channel/client.py` does, for most small messages; others are left there.
    """

    frames: list[Any]
    nbytes: int
    flush_scheduled: bool
    last_stream: int
    """The attributes of a `SendQueue`."""

    def __init__(
        self,
        messages: Messages,
        connection: object,
        calls: dict[int, Any],
        flush: Callable[[], object],
        deadlines: object,
        call: type,
        no_sink: Callable[[InferResponse], None],
        limit: int,
        max_frame: int,
    ) -> None:
        """Use what a `Channel` has.

        Args:
            calls: its calls in flight by stream, never replaced by another dictionary.
            flush: schedules that frames are written.
            deadlines: what the streams of calls with a bucket are removed from.
            call: the class of calls.
            no_sink: the sink of calls that have ended.
            limit: bytes waiting to be sent beyond which requests are left to the channel.
            max_frame: bytes of a frame beyond which it is left to the channel.

        Raises:
            TypeError: a class has its fields elsewhere than in slots.
        """

    def send(self, request: InferRequest, sink: Callable[[InferResponse], object], /) -> Any:
        """Send a request and return its call; None for one that the channel has to send or refuse."""

    def take(self, buffer: Buffer, start: int, end: int, /) -> int:
        """Handle responses in a buffer; return where the first frame that is left or incomplete begins."""

class ServerEnd:
    """The replica's end of a channel: hands requests to a handler, with functions that send their responses.

    It does for most small messages what `ServerConnection` does, to which others are left.
    """

    frames: list[Any]
    nbytes: int
    flush_scheduled: bool
    last_stream: int
    """The attributes of a `SendQueue`."""

    def __init__(
        self,
        messages: Messages,
        connection: object,
        streams: dict[int, Cancel],
        flush: Callable[[], object],
        handler: object,
        nothing: Cancel,
        limit: int,
        max_frame: int,
        max_streams: int,
    ) -> None:
        """Use what a server's connection has.

        Args:
            streams: cancel functions of requests in flight by stream, never replaced by another dictionary.
            flush: schedules that frames are written.
            handler: has `submit`.
            nothing: the cancel function of a request that its handler has not accepted yet.
            limit: bytes waiting to be sent beyond which the connection applies back-pressure.
            max_frame: bytes of a frame beyond which it is left to the connection.
            max_streams: requests in flight beyond which they are left to the connection.
        """

    def take(self, buffer: Buffer, start: int, end: int, /) -> int:
        """Handle requests in a buffer; return where the first frame that is left, or incomplete, begins."""

def read_json(
    types: tuple[type[Any], ...],
    model: str,
    version: str,
    body: Buffer,
    json_end: int,
    max_input_size: int,
    /,
) -> Any | None:
    """Return the `HttpInfer` of a body; None if Python has to read it, to find what is wrong or unusual.

    A long body is read without the interpreter's lock.

    Args:
        types: the classes `Tensor`, `RequestedOutput`, `RegionSlice`, `InferRequest` and `HttpInfer`.
    """

def json_data(datatype: str, count: int, data: Buffer, /) -> bytes | None:
    """Return the data of a tensor as JSON, as `encode_data` does; None if Python has to write it.

    Much of it is written without the interpreter's lock.

    Args:
        count: elements that the shape tells of.
    """

class HttpRequests:
    """Reads inference requests over HTTP/1.1 in full: head, JSON part and binary tensors."""

    def __init__(
        self,
        tensor: type[Tensor],
        output: type[RequestedOutput],
        request: type[InferRequest],
        response: type[InferResponse],
        json_types: tuple[type[Any], ...],
        asked: tuple[bytes, ...],
        response_heads: tuple[bytes, ...],
        encode_data: Callable[[Tensor], bytes],
        max_input_size: int,
        max_head: int,
        max_body: int,
        /,
    ) -> None:
        """Read and write with these types.

        Args:
            asked: lower-case names of headers that decide about requests, besides those that always do.
            response_heads: `RESPONSE_HEADS` of `app/protocol/http/compiled.py`.
            encode_data: writes the tensors in the JSON of responses.
            max_input_size: bytes of the JSON part, and of each tensor in it.
            max_head, max_body: bytes of a request's head and body; Python refuses longer ones.

        Raises:
            TypeError: a type has its fields elsewhere than in slots.
        """

    def add(self, head: bytes, owner: object, model: str, version: str, /) -> bool:
        """Read requests with a head like this one for a model; return False if that is not plain.

        Args:
            head: one that Python has read; the values of headers that decide nothing may differ.
            owner: what submits and answers the requests.
        """

    def match(self, data: bytes, connection: object, /) -> Matched | None:
        """Return the request that these bytes are, if they are one of a known head, and nothing more."""

class Matched:
    """A request that was read, until it is answered: its exchange, and the sink of its responses.

    A plain response is written to the connection; any other is passed to `owner.deliver(matched, response)`,
    and after that to `sink` if there is one.
    """

    connection: Any
    request: InferRequest
    call: Any
    entry: Any
    sink: Callable[[InferResponse], None]
    @property
    def owner(self) -> Any: ...
    @property
    def binary_default(self) -> bool: ...
    @property
    def needs_json_encoding(self) -> bool: ...
    def __call__(self, response: InferResponse, /) -> None: ...
    def disconnect(self) -> None:
        """Cancel the request, whose client has disconnected."""

class PlainCheck:
    """Whether requests are plainly right for a model; `RequestChecker` checks all others."""

    def __init__(
        self,
        messages: Messages,
        max_batch: int,
        inputs: tuple[tuple[str, str, int, tuple[int, ...], bool], ...],
        outputs: frozenset[str],
    ) -> None:
        """Check against a configuration; with over eight inputs, or a high rank, nothing is plainly right.

        Args:
            inputs: name, datatype, itemsize, dims and whether it is optional, of each.
            outputs: their names.
        """

    def rows(self, request: InferRequest, /) -> int:
        """Return the batch size of a request that is plainly right; 0 for one that needs every check."""

class PlainRequests:
    """The way of plain requests through a replica: what `ServedModel.submit` and `_deliver` do for them."""

    def __init__(
        self,
        messages: Messages,
        check: PlainCheck,
        pending: type,
        name: str,
        version: str,
        submit: Callable[..., Any],
        deliver: Callable[..., Any],
        cancel: Callable[..., Any],
        refused: Callable[..., Any],
        record: Callable[..., Any],
        read: Callable[[InferRequest], InferRequest],
        write: Callable[[InferRequest, InferResponse], InferResponse],
        scheduler: object,
        responses: object,
        in_flight: set[Any],
        durations: list[int] | None,
        many: int,
    ) -> None:
        """Use what a `ServedModel` has.

        Args:
            pending: the class of queued requests.
            name, version: of the model.
            submit, deliver: handle what is not plain.
            cancel: cancels a queued request.
            refused: is told when a request arrived that the scheduler refused, and why.
            record: counts a success, by its nanoseconds in all and in the queue.
            read, write: `read_inputs` and `write_outputs` of `app/transport/memory/client_regions.py`.
            scheduler: has `schedule`.
            responses: the queue of responses.
            in_flight: requests accepted and without their final response, never replaced by another set.
            durations: the list to which `record` appends both numbers, if it does nothing else while it is
                shorter than `many`: it is then not called.

        Raises:
            TypeError: a class has its fields elsewhere than in slots.
        """

    def submit(self, request: InferRequest, sink: Callable[[InferResponse], object], /) -> Cancel:
        """Queue a request; return the function that cancels it.

        Raises:
            InferError: as `ServedModel.submit`.
        """

    def deliver(self, pending: Any, response: InferResponse, /) -> None:
        """Send a response of a queued request to its sink."""

    def deliver_all(self, pending: Sequence[Any], responses: Sequence[InferResponse], /) -> None:
        """Deliver the responses of queued requests, on the loop; by `deliver` of each what is not plain."""

def split_strings(data: Buffer, is_text: bool, /) -> list[Any] | None:
    """Return the elements of a BYTES tensor, as `str` or `bytes`, by its wire bytes.

    None for what Python has to read: other bytes, and text that is no UTF-8.
    """

def join_strings(elements: list[Any], /) -> bytes | None:
    """Return the wire bytes of a list of `bytes` and `str`; None for anything else."""

class CountedSubmit:
    """Counts the answered requests of clients to a version: `CountedTarget.submit` for most of them."""

    def __init__(
        self,
        types: tuple[type[InferRequest], type[InferResponse], type[Tensor]],
        submit: Callable[[InferRequest, Sink], Call],
        client: Callable[[], Any],
        steps: Callable[[InferRequest, Sink], Call],
        received: Callable[[str, InferRequest, Sink, InferResponse], None],
        counts: dict[str, bytearray],
        batched: bool,
    ) -> None:
        """Pass requests on.

        Args:
            types: of requests, responses and tensors.
            submit: takes the requests.
            client: returns the client, which has a `name`; None for nobody.
            steps: takes the requests of ensembles and models instead.
            received: takes the client's name, the request, its sink and the response where Python has to
                count: of clients without counts, and of what is not plain.
            counts: by the client's name: requests, rows, bytes of inputs and of outputs, 64 bits each.
            batched: the first dimension of a request's first input is its rows; else it has one.

        Raises:
            TypeError: a type lacks a slot.
        """

    def __call__(self, request: InferRequest, sink: Sink, /) -> Call: ...
