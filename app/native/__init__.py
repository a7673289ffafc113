"""The compiled part of the data plane: C that does what Python beside it does, for most requests.

Python is the reference: it does everything, and all of it where C is not compiled or not wanted. C reads what
it knows, and leaves the rest to Python before it has changed anything, so that there is one judge of it.

Where C takes over, functions of Python are not called, and a breakpoint in them is not hit: **run with
`--data-plane=python` to debug**. The method `use_compiled` of a class puts C there, where it is no argument:

- `HttpConnection`, by the recogniser of its `HttpState`: `HttpRequests.match` and `Matched` in place of
  `_parse`, `InferRoute` and `ResponseWriter`; routes of inference by their context: `read_json` in place
  of `decode_infer`, `json_data` in place of `encode_data`.
- `Http2Connection`, by its `Http2State`: `HeaderDecoder` in place of `HeaderReader` and `read_head`;
  `UnaryCalls.receive` in place of `_on_frame`, `Stream` and `UnaryCall`.
- `GrpcFront`: `UnaryCalls.sink` in place of `_deliver`, `UnaryCalls.read` in place of `decode_request`.
- `Connection` of a channel: `ClientEnd` in place of `Channel.send` and `_response_received`, `ServerEnd` in
  place of `_request_received` and `_deliver`.
- `StringPasses`, of the whole process (`strings.py`): `split_strings` and `join_strings` in place of what
  `unpack_bytes` and `pack_bytes` do.
- `CountedTarget`, by its `CostTap`: `CountedSubmit` in place of `_submit` and `_receive`.
- `ServedModel` with its `ResponseQueue`: `PlainRequests` in place of `submit`, `_deliver` and `deliver_each`.

What C keeps of requests that it has seen is learned in Python, under `not_learned` (`learning.py`): an
exception there ends nothing. The slots of Python's objects into which it reaches are in `slots.py`.
"""
