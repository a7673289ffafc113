"""A stand-in for tritonserver in one process: `python -m tests.long.qa_server FLAG ...`.

It is up within two seconds, where a server on Ray takes ten. Like tritonserver, and unlike `nereid dev`, it
keeps the control mode, logs what the manager logs, and ends when a model of its start fails.
"""

import logging
import signal
import sys
import threading
from collections.abc import Sequence

from app.core.observability.log import VERBATIM, configure_logging
from app.settings.flag.errors import SettingsError
from app.settings.settings import ServerSettings
from deployments.manager.start import start_tables
from nereid.engine.engine import Engine
from nereid.engine.fronts import Fronts
from nereid.server.cli import TRITONSERVER, TextRequested, parse

logger = logging.getLogger("app")
_GRACE_S = 1.0


def main(argv: Sequence[str]) -> int:
    """Serve until SIGTERM; return the exit status."""
    try:
        settings = parse(argv, TRITONSERVER)
    except TextRequested as requested:
        print(requested)
        return 1
    except SettingsError as error:
        print(f"{TRITONSERVER}: {error}", file=sys.stderr)
        return 1
    for warning in settings.warnings:
        print(warning, file=sys.stderr)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    configure_logging(settings.log)
    engine = Engine(settings, lends_loop=False)
    try:
        return serve(engine, settings, stop)
    except Exception as error:
        print(f"error: creating server: Internal - {error}", file=sys.stderr)
        return 1
    finally:
        engine.close()


def serve(engine: Engine, settings: ServerSettings, stop: threading.Event) -> int:
    """Load the models of the start, and answer requests until `stop` is set."""
    engine.start()
    for text in start_tables(settings, engine.table):
        logger.info("\n%s", text, extra=VERBATIM)
    if settings.repository.exit_on_error and not engine.repository.lifecycle.all_loaded:
        print("error: creating server: Internal - failed to load all models", file=sys.stderr, flush=True)
        return 1
    fronts = Fronts(engine)
    fronts.open()
    polls = settings.repository.control_mode == "poll" and settings.repository.poll_interval_s > 0
    while not stop.wait(settings.repository.poll_interval_s if polls else 1.0):
        if polls:
            engine.plane.call(engine.repository.poll())
    print(f"Signal ({signal.SIGTERM.value}) received.", flush=True)
    fronts.close(_GRACE_S)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
