"""`nereid rollback`: `nereid rollout rollback` by the name that people look for in a hurry."""

from collections.abc import Sequence
from typing import Final

from nereid.commands.rollout import command
from nereid_client.tools.arguments import command_parser

_ABOUT: Final = """Go back at once to the version of a model that served before, also when its rollout is long
over. Newer versions get no requests then, also after a restart."""
_EXAMPLES: Final = """examples:
  nereid rollback resnet                         # to what served before
  nereid rollback resnet --to 3 --why 'ticket 7'
  nereid rollout history resnet                  # what has served, since when, by whom and why
  nereid rollout forget resnet                   # let the versions be tried again that were left out"""


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    parser = command_parser("nereid rollback", _ABOUT, _EXAMPLES)
    command.add_arguments("rollback", parser)
    parser.set_defaults(command="rollback")
    return command.run(parser.parse_args(argv))
