"""What to do about the state of a model, by the reason that is given for it. Pure."""

import re
from typing import Final

from app.core.hints import MARK
from app.routing.table import DEPENDENCY, IDLE, UNLOADED, ModelState

_TABLE: Final = (
    (
        r"No module named|cannot import name|ModuleNotFoundError|ImportError",
        "Install the package for the model: by a requirements.txt in its directory, or an environment of its "
        "own (docs/models/environments.md).",
    ),
    (
        r"out of memory|OutOfMemory|bad_alloc|MemoryError|Cannot allocate",
        "Give the model less: fewer instances (instance_group), a smaller max_batch_size; or have models "
        "leave for others with --model-memory-bytes.",
    ),
    (
        r"Error parsing|failed to parse|Invalid value .*config|config\.pbtxt",
        "Correct config.pbtxt at the place that the reason names; `nereid check REPOSITORY` reads it "
        "without a server.",
    ),
    (
        r"backend|platform",
        "Install what the backend needs, or correct its name: docs/models/frameworks.md lists file, backend "
        "and extra of each framework.",
    ),
    (
        r"unable to find|[Ff]ailed to open|No such file|does not exist|no version|No version",
        "Put the file where the reason names it, as <model>/<version>/<file>; `nereid check REPOSITORY` "
        "looks for the same files without a server.",
    ),
    (
        r"timed? ?out|too long",
        "Give the load more time (--model-load-timeout-secs), or see in the log what it waited for.",
    ),
    (r"no replica|cannot be reached|lost", "Ray Serve starts the process again; the log says why it ended."),
    (
        r"rejected",
        "Load it again with another number once it is mended, or go back to it: docs/operate/rollout.md.",
    ),
)
_KNOWN: Final = tuple((re.compile(pattern, re.IGNORECASE), remedy) for pattern, remedy in _TABLE)
_SEARCHED: Final = 4096
"""Characters of a reason that are looked at."""
_CHECK: Final = (
    "`nereid check REPOSITORY` tries the model without a server; the server's log has the whole error."
)
_LOAD: Final = "Load it (with --model-control-mode=explicit): POST /v2/repository/models/NAME/load."


def explained(state: str, reason: str) -> tuple[str, str]:
    """Return the reason of a state, in words, and what to do about it; "" for either if there is nothing.

    Args:
        state: as in the repository's index; "" for a model that was never loaded.
        reason: as in the index.
    """
    reason, _, hint = reason[:_SEARCHED].partition(MARK)
    reason = reason.strip()
    if reason == IDLE:
        return "Idle: it has no process now.", "Nothing: the first request loads it."
    if not state or reason == UNLOADED or (state == ModelState.UNAVAILABLE and not reason):
        return ("It was unloaded." if reason == UNLOADED else reason or "It was never loaded."), _LOAD
    if state in (ModelState.READY, ModelState.LOADING, ModelState.UNLOADING):
        return reason, ""
    if hint:
        return reason, hint[0].upper() + hint[1:]
    if DEPENDENCY in reason or "depends on" in reason:
        return reason, "Mend the model that it depends on, below; the ensemble is then loaded with it."
    return reason, next((remedy for known, remedy in _KNOWN if known.search(reason)), _CHECK)
