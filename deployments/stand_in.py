"""Classes that stand for those of deployments where they are deployed, and nothing of them is imported."""

import sys
from typing import Any, Final

_modules: Final[list[str]] = []


def import_deployments_from(module: str) -> None:
    """Have replicas import the classes from this module, which is loaded, and which any worker can import."""
    _modules.append(module)


def stand_in(name: str) -> Any:
    """Return a class that is pickled as that of a deployment: as its name in the module of the classes."""
    module = sys.modules[_modules[-1]]
    if name not in vars(module):  # only a class that the module has is pickled as its name
        setattr(module, name, type(name, (), {"__module__": module.__name__}))
    return vars(module)[name]
