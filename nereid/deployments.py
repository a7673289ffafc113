"""The classes of the server's Serve deployments, by names under which any Ray worker can import them.

Serve pickles a class as its name in a module, and a new replica first imports that module. It is this one, so
that the server's packages are loaded before anything in them is needed.
"""

import sys
from functools import cache
from importlib import import_module
from typing import Any, Final

from nereid.internals import load_internals

load_internals()

CLASSES: Final = {
    "Ingress": "app.ingress.deployment",
    "ModelVersion": "deployments.serve_replica.deployment",
    "RepositoryManager": "deployments.manager.manager",
}


@cache
def stand_in(name: str) -> Any:
    """Return a class that stands for that of a deployment in this process, which imports nothing of it.

    A process that deploys needs no more than the name, as which either is pickled.
    """
    made = type(name, (), {"__module__": __name__})
    # Else pickle would write the class, not its name. A process that was prepared imports this module anew.
    setattr(sys.modules[__name__], name, made)
    return made


def __getattr__(name: str) -> Any:
    """Import a deployment's class when it is asked for: no replica needs the modules of the other two."""
    if name not in CLASSES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    deployment = getattr(import_module(CLASSES[name]), name)
    deployment.__module__ = __name__  # the name that pickle writes
    return deployment
