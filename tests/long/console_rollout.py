"""Starts a rollout of a server on Ray and aborts it in the console's page, by the keyboard alone.

python -m tests.long.console_rollout

Needs the extra `browser` and a Chromium. Ends with an error if a page reports one, if a button cannot be
reached by the tabulator, or if the server does not do what the dialogs were told.
"""

import tempfile
from pathlib import Path
from typing import Any, Final

from tests.browser import chromium, opened, press
from tests.long.rollout_bench import ask
from tests.long.rollout_models import GOOD, Model
from tests.server import START_S, Server, free_port, wait_until

NAME: Final = "judged"
WHY: Final = "it is a Friday"
LOADED_S: Final = 90.0


def start(page: Any) -> None:
    """Start a rollout with 5 % of the requests."""
    press(page, page.get_by_role("button", name="Start a rollout…"))
    dialog = page.get_by_role("dialog", name="Start a rollout")
    press(page, dialog.get_by_label("Candidate"), "2")
    press(page, dialog.get_by_label("Percent"), "5")
    press(page, dialog.get_by_role("button", name="Start a rollout"))


def abort(page: Any) -> None:
    """Abort it, with a reason."""
    press(page, page.get_by_role("button", name="Abort…"))
    dialog = page.get_by_role("dialog", name="Abort the rollout")
    press(page, dialog.get_by_label("Why"), "End")
    page.keyboard.type(WHY)
    press(page, dialog.get_by_role("button", name="Abort the rollout"))


def journey(page: Any, server: Server) -> None:
    """Start the rollout of version 2 and abort it; raises AssertionError where the server has not done so."""
    press(page, page.get_by_role("link", name="Rollouts", exact=True))
    press(page, page.locator("main").get_by_role("link", name=NAME))
    start(page)
    headline = page.locator("main [role=status]").get_by_text("Version 1 to 2")
    headline.wait_for(timeout=LOADED_S * 1000)
    wait_until(lambda: _status(server)["state"] == "step", LOADED_S, "the candidate is loaded")
    status = _status(server)
    assert (status["stable"], status["candidate"], status["percent"]) == (1, 2, 5), status
    abort(page)
    wait_until(lambda: _status(server)["state"] == "aborted", LOADED_S, "the rollout is aborted")
    page.get_by_role("button", name="Start a rollout…").wait_for()
    history = ask(server, f"models/{NAME}/rollout/history")
    assert WHY in str(history), history


def _status(server: Server) -> dict[str, Any]:
    return ask(server, f"models/{NAME}/rollout")


def _main() -> None:
    port = free_port()
    with tempfile.TemporaryDirectory() as work, chromium() as browser:
        models = Path(work) / "models"
        model = Model(NAME, "http")
        model.write(models, 1, GOOD)
        flags = [f"--model-repository={models}", "--allow-console=true", f"--console-port={port}"]
        flags += ["--model-control-mode=explicit", "--load-model=*"]
        server = Server(flags, Path(work) / "log").start()
        try:
            wait_until(lambda: server.get("/", port=port)[0] == 200, START_S, "the console answers")
            model.write(models, 2, GOOD)
            with opened(browser, f"http://127.0.0.1:{port}/") as page:
                journey(page, server)
            print("a rollout was started and aborted by the keyboard")
        finally:
            server.stop()


if __name__ == "__main__":
    _main()
