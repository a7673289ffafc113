"""Parses the source of a model."""

import ast


def parse(source: bytes) -> ast.Module:
    """Return the syntax tree of a source; errors are those of `ast.parse`."""
    try:
        return ast.parse(source)
    except SystemError:
        # Python before 3.11.5 (cpython#106905): garbage was collected meanwhile, and a finalizer parsed, too,
        # as a logged traceback does.
        return ast.parse(source)
