"""The log of exceptions of a model's own code."""

import logging

from backends.python.api.errors import describe
from backends.python.execution import loader

logger = logging.getLogger(__name__)


def log_failure(what: str, instance: str, error: BaseException) -> None:
    """Log an exception with the model's frames, in one line; the whole traceback at `--log-verbose=1`."""
    frames = describe(error, loader.OUR_FOLDER).rstrip()
    logger.error("%s of instance '%s' failed: %s", what, instance, frames)
    logger.debug("the whole traceback", exc_info=error)
