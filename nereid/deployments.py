"""The classes of the server's Serve deployments, by names under which any Ray worker can import them.

Serve pickles a class as its name in a module, and a new replica first imports that module. It is this one, so
that the server's packages are loaded before anything in them is needed. What other applications call raises
the public error.
"""

from functools import cache
from importlib import import_module
from typing import Any, Final

from nereid.internals import load_internals

load_internals()

from deployments.stand_in import import_deployments_from  # noqa: E402
from nereid.raised import for_callers  # noqa: E402

CLASSES: Final = {
    "Ingress": "app.ingress.deployment",
    "ModelVersion": "deployments.serve_replica.deployment",
    "RepositoryManager": "deployments.manager.manager",
}
_CALLED: Final = {"Ingress": "call", "ModelVersion": "__call__"}
"""What other applications call by handles."""

import_deployments_from(__name__)  # a manager deploys models


def __getattr__(name: str) -> Any:
    """Import a deployment's class when it is asked for: no replica needs the modules of the other two."""
    if name not in CLASSES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return _named_here(name)


@cache
def _named_here(name: str) -> type:
    """Return a deployment's class under the name that pickle writes."""
    own = getattr(import_module(CLASSES[name]), name)
    called = {each: for_callers(getattr(own, each)) for each in (_CALLED.get(name),) if each}
    return type(name, (own,), {"__module__": __name__, "__doc__": own.__doc__, **called})
