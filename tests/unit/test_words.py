"""One word for one thing, where a test can tell: see the glossary of docs/develop/structure.md."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
OTHER_WORDS = {"answer", "emit", "finish", "give", "hand", "on", "pass", "reply", "respond", "send", "settle"}
"""What handing a response on, and being handed one, could be called too."""


def takers_of_responses() -> Iterator[tuple[str, str]]:
    """Yield where each function of the product that is given a response is, and its name."""
    for folder in ("app", "backends", "deployments", "nereid"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.FunctionDef) or node.returns is None:
                    continue
                given = [ast.unparse(each.annotation) for each in node.args.args if each.annotation]
                if "InferResponse" in given and ast.unparse(node.returns) == "None":
                    yield f"{path.relative_to(ROOT)}: {node.name}", node.name


def test_responses_are_delivered_and_received() -> None:
    found = dict(takers_of_responses())
    assert {"deliver", "receive"} <= set(found.values())
    assert [at for at, name in found.items() if name.strip("_").split("_")[0] in OTHER_WORDS] == []
