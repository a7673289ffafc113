"""Models by namespace and name, `<namespace>::<name>` as tritonserver writes it with `--model-namespacing`.

A namespace is the path or address of a repository. Without namespaces an identifier is the model's name. A
name has no slash and a namespace has one, so that an identifier can be taken apart.
"""

from typing import Final

SEPARATOR: Final = "::"


def identifier(namespace: str, name: str) -> str:
    """The identifier of a model; its name when there are no namespaces."""
    return f"{namespace}{SEPARATOR}{name}" if namespace else name


def namespace_of(model: str) -> str:
    """The namespace of an identifier, "" without one."""
    return model.removesuffix(f"{SEPARATOR}{name_of(model)}") if "/" in model else ""


def name_of(model: str) -> str:
    """The model's name in an identifier: what its directory is called, and what clients ask for."""
    return model[model.rindex("/") :].partition(SEPARATOR)[2] if "/" in model else model
