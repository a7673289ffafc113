"""Where the two servers are known to differ, and why."""

import re

# What ends tritonserver 2.51 itself.
FATAL = re.compile(
    r"http: (shape \[(2147483648, 16|9223372036854775807, 2|4294967297, 4294967297)\]"
    r"|classes of strings|classes and shared memory)"
)

_REASONS = {
    "Nereid has a list at /v2/models": r"http: (GET|POST) /v2/models$",
    "a percent-encoded name is that of its model here": r"http: GET /v2/models/s%75ms$",
    "the version of the server": r"http: GET /v2(\?x=1)?$|grpc: ServerMetadata",
    "Nereid's texts and codes are those of tritonserver 2.73": (
        r"http: GET /v2/models/(nobody|sums/versions/9)/ready"
        r"|http: JSON length|(http|grpc): (stream: )?string "
        r"|http: index, ready|http: load,|http: unload, unload_dependents"
        r"|(http|grpc): register|grpc: load ('' of ''|with file:)"
        r"|http: (data|element) = \[(\[\])?\]$|http: shape \[1, 17\]$|http: (nested )?data too short$"
        r"|http: doubled output$|grpc: (stream: )?outputs \('OUTPUT0', 'OUTPUT0'\)"
    ),
    "tritonserver reads the code of an error that it has freed": (
        r"http: generate(_stream)?(, failing|, too late| answered by '[eE])"
    ),
    "an unordered map says which input is named first": (
        r"http: third input|http: no batch of the other"
        r"|(http|grpc): (stream: )?shape \[(16|2, 16|9, 16|-1, 16"
        r"|0, 16|4611686018427387904, 16|9223372036854775808, 1)\]"
    ),
    "tritonserver reads what it could inflate": r"http: (gzip that is none|gzip cut short|deflate without)",
    "tritonserver takes the bytes of the text for a number": r"http: sequence, text id|grpc: .*sequence '12'",
    "tritonserver takes -1 for 4294967295 and keeps it": (
        r"http: trace \{'(log_frequency|trace_mode)|grpc: trace of '(sums)?': +(\[\]|trace_level \['X'|mine)"
    ),
    "Nereid's model refuses the request, and is named": (
        r"grpc: stream: (no inputs|shape|data type|input name|missing input|raw contents|outputs|contents"
        r"|strings|sequence|no sequence)"
    ),
    "tritonserver cuts the count to 32 bits": r"(4294967296|9223372036854775808|4611686018427387904) classes",
    "tritonserver looks at these numbers in another order": (
        r"http: (shared_memory_byte_size|output classification) = 18446744073709551616"
    ),
    "tritonserver prints a digit that is not the nearest": r"http: FP32 1e\+(17|21|22|38)",
    "no model of optional inputs takes none there": r"http: empty request",
    "the input is named as in the configuration here": r"http: raw, odd size",
    "Nereid refuses settings that there are not": (
        r"http: (trace|logging) (\{'(mine|trace_mode)'|\{'trace_level': \['X'\]|\[1\])"
        r"|grpc: (trace of '(sums)?': (mine|trace_level \['X'\])|log mine)"
    ),
    "JSON that nobody writes": r"Inf\]|\"inputs\":1,\"inputs\"",
}
REASONS = {re.compile(pattern): reason for reason, pattern in _REASONS.items()}


def reason(name: str) -> str:
    """Why the answers to a request may differ; empty when they may not."""
    return next((text for pattern, text in REASONS.items() if pattern.search(name)), "")
