"""Commands beside the server itself: `nereid NAME [ARGUMENT ...]`."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Final, NamedTuple


class Command(NamedTuple):
    """A row of the table of commands.

    Attributes:
        module: has `main`, from the arguments behind the command's name to the exit status; it is imported
            when the command runs.
        help: one sentence for the usage text.
        serves: `main` takes, behind the arguments, what runs the server by its command line.
    """

    module: str
    help: str
    serves: bool = False

    def run(self, argv: Sequence[str], server: Callable[[Sequence[str]], None]) -> int:
        """Run the command; return its exit status."""
        main = import_module(self.module).main
        status: int = main(argv, server) if self.serves else main(argv)
        return status


COMMANDS: Final[Mapping[str, Command]] = {
    "analyze": Command("nereid.commands.analyze", "Search the configuration that does most within an SLO."),
    "backends": Command(
        "nereid.commands.backends", "Install backends that run in an environment of their own."
    ),
    "batch": Command("nereid.offline.command", "Put the rows of files through a model, without a server."),
    "check": Command(
        "nereid.commands.check.command", "Check the models of a repository without serving them."
    ),
    "cost": Command(
        "nereid.commands.cost.command", "Tell what models and clients consume, and what that costs."
    ),
    "console": Command("nereid.commands.console", "Serve the console for browsers of a running server."),
    "dev": Command(
        "nereid.commands.dev", "Serve models in one process, and load them again when files are saved."
    ),
    "drift": Command(
        "nereid.commands.drift.command", "Show whether a model's requests still look as they did."
    ),
    "env": Command("nereid.commands.env", "Print the variables with which Ray's commands reach a server."),
    "feedback": Command("nereid_client.tools.feedback", "Tell a server what was right, from a file."),
    "files": Command("nereid.commands.files", "Write files to deploy and watch a server with, or its pages."),
    "migrate": Command("nereid.commands.migrate", "Make a repository of the models of another server."),
    "new": Command(
        "nereid.commands.new.command", "Make a model's directory from a file, a folder or nothing."
    ),
    "optimise": Command(
        "nereid.optimise.command", "Try cheaper forms of a model on recorded requests; write the best one."
    ),
    "perf": Command(
        "nereid_client.tools.perf.command.run", "Measure a model: latency over load, an SLO's rate."
    ),
    "replay": Command(
        "nereid_client.tools.replay.command", "Repeat recorded requests at a server, and compare its answers."
    ),
    "plan": Command(
        "nereid_client.tools.plan.command", "Tell how many replicas a model needs for more requests."
    ),
    "rollback": Command(
        "nereid.commands.rollout.rollback", "Go back at once to the version of a model that served before."
    ),
    "rollout": Command(
        "nereid.commands.rollout.command", "Show, change and compare rollouts of new versions."
    ),
    "serve": Command("nereid.commands.serve", "Serve a file, a folder or a model as it stands.", serves=True),
    "status": Command("nereid.commands.status", "Print addresses, models and processes of a server."),
    "tape": Command("nereid.commands.tape.command", "Look at recorded requests, export and remove them."),
    "token": Command("nereid.commands.token", "Make, list and revoke tokens of clients."),
}
"""The commands by name."""
