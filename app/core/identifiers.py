"""Models by namespace and name, `<namespace>::<name>` as tritonserver writes it with `--model-namespacing`.

A namespace is the path or address of a repository. Without namespaces an identifier is the model's name. A
name has no slash and a namespace has one, so that an identifier can be split.
"""

import re
from hashlib import blake2b
from typing import Final

SEPARATOR: Final = "::"
_UNSERVABLE: Final = re.compile(r"[^ -~]|#")
_DEPLOYMENT_LENGTH: Final = 80
_READABLE: Final = 40


def identifier(namespace: str, name: str) -> str:
    """Return the identifier of a model: its name when there are no namespaces."""
    return f"{namespace}{SEPARATOR}{name}" if namespace else name


def namespace_of(model: str) -> str:
    """Return the namespace of an identifier, "" without one."""
    name = name_of(model)
    return model.removesuffix(f"{SEPARATOR}{name}") if name != model else ""


def name_of(model: str) -> str:
    """Return the model's name in an identifier: the name of its directory, which clients request.

    A path without a namespace is what a client calls a model, and stays what it is.
    """
    name = model[model.rindex("/") :].partition(SEPARATOR)[2] if "/" in model else ""
    return name or model


def deployment_name(model: str) -> str:
    """Return the name that a model's deployment has in Serve; a name that Serve can use is returned as it is.

    Ray 2.60 refuses "#" in it, and has it, twice, in the name of a log file and in the tags of metrics, which
    are ASCII.
    """
    if len(model) <= _DEPLOYMENT_LENGTH and not _UNSERVABLE.search(model):
        return model
    readable = _UNSERVABLE.sub("_", model[:_READABLE])
    return f"{readable}~{blake2b(model.encode(), digest_size=8).hexdigest()}"


def base_name(model: str, version: int) -> str:
    """Return `simple:1`, with a digest of the namespace if the model has one (`simple:1~8c0a3f12`)."""
    namespace = namespace_of(model)
    mark = f"~{blake2b(namespace.encode(), digest_size=4).hexdigest()}" if namespace else ""
    return f"{deployment_name(name_of(model))}:{version}{mark}"


def application_name(base: str, generation: int) -> str:
    """Return `simple:1`, or `simple:1@2` for a second load of the version, which starts beside the first."""
    return base if generation == 1 else f"{base}@{generation}"
