"""`nereid analyze`, which knows by the backends' descriptions how a model says its number of threads."""

from collections.abc import Sequence

from backends.registry.descriptions import descriptions
from nereid_client.tools.analyze import command


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    return command.main(argv, {each.name: each.thread_parameter for each in descriptions()})
