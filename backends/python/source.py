"""The code of a Python model, as far as it can be checked without running it."""

import ast
from pathlib import Path

from app.core.errors import invalid_arg, unavailable
from backends.python.execution.parsing import parse


def check_model_source(path: Path) -> None:
    """Check that a file defines a model.

    Raises:
        InferError: INVALID_ARG for code that is no Python, or has no model; UNAVAILABLE without the file.
    """
    nodes = list(ast.walk(parsed(path)))
    names = {node.name for node in nodes if isinstance(node, ast.ClassDef)}
    names |= {node.id for node in nodes if isinstance(node, ast.Name)}
    names |= {
        each.asname or each.name for node in nodes if isinstance(node, ast.ImportFrom) for each in node.names
    }
    if not names & {"TritonPythonModel", "*"}:
        raise invalid_arg(f"{path} has no class 'TritonPythonModel'")


def parsed(path: Path) -> ast.Module:
    """Parse a file.

    Raises:
        InferError: INVALID_ARG for code that is no Python; UNAVAILABLE without the file.
    """
    try:
        return parse(path.read_bytes())
    except OSError as error:
        raise unavailable(f"unable to read '{path}': {error.strerror}") from None
    except (SyntaxError, ValueError, RecursionError) as error:
        raise invalid_arg(f"{path}: {type(error).__name__}: {error}") from None
