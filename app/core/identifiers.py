"""Models by namespace and name, `<namespace>::<name>` as tritonserver writes it with `--model-namespacing`.

A namespace is the path or address of a repository. Without namespaces an identifier is the model's name. A
name has no slash and a namespace has one, so that an identifier can be split.
"""

from typing import Final

SEPARATOR: Final = "::"


def identifier(namespace: str, name: str) -> str:
    """Return the identifier of a model: its name when there are no namespaces."""
    return f"{namespace}{SEPARATOR}{name}" if namespace else name


def namespace_of(model: str) -> str:
    """Return the namespace of an identifier, "" without one."""
    return model.removesuffix(f"{SEPARATOR}{name_of(model)}") if "/" in model else ""


def name_of(model: str) -> str:
    """Return the model's name in an identifier: the name of its directory, which clients request."""
    return model[model.rindex("/") :].partition(SEPARATOR)[2] if "/" in model else model
