"""Feedback: what clients say later of answers that they got."""

from typing import Annotated, Any, Final

import msgspec

MAX_RECORDS: Final = 10_000
"""Records of one request."""
FEW_RECORDS: Final = 50
"""Records of one request that are read on the event loop, within a millisecond."""
MAX_RECORD_BYTES: Final = 64 << 10
"""Bytes of one record in msgpack: a label, or the right outputs of a few rows."""
MAX_NAME: Final = 1024

Name = Annotated[str, msgspec.Meta(max_length=MAX_NAME)]
Score = Annotated[float, msgspec.Meta(ge=0, le=1)]


class Feedback(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is said of one answer: `score`, or else what would have been right, `label` or `outputs`.

    Attributes:
        id: of the request. `row` names the row of the tape instead.
        row: its key, as `nereid tape show` prints it.
        score: how good the answer was, 0 to 1.
        label: the right class: a number or a name, of a request of several rows a list of them.
        outputs: the right values of outputs, by name, as nested lists or flat ones.
        output: the name of the output that has the label; "" where a model has one output.
    """

    id: Name = ""
    row: Name = ""
    score: Score | None = None
    label: Any = None
    outputs: dict[str, Any] | None = None
    output: Name = ""
