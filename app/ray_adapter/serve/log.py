"""The log of Serve itself, logger `ray.serve` of Ray 2.60."""

import logging


def omit_failures(kind: type[Exception]) -> None:
    """Drop the tracebacks that Serve logs of calls that fail with such an exception; their callers get it."""
    logging.getLogger("ray.serve").addFilter(
        lambda record: not (record.exc_info and isinstance(record.exc_info[1], kind))
    )
