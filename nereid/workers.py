"""What a fork server of Ray's workers imports, by a name under which any program can import it."""

from collections.abc import Callable
from importlib import import_module
from typing import Final

from nereid.internals import load_internals, set_aside

_DEPLOYMENTS: Final = "nereid.deployments"
_CHOSEN: Final = (
    # What they import by what they serve; not the frameworks, most of which start threads.
    "app.ingress.grpc.front",
    "app.ingress.metrics.front",
    "app.ingress.rest.front",
    "backends.python.backend",
    "deployments.bls.service",
)


def prepare(import_ray: Callable[[], None]) -> None:
    """Import what replicas need, after `import_ray`, which needs the server's packages itself."""
    load_internals()
    import_ray()
    deployments = import_module(_DEPLOYMENTS)
    for name in deployments.CLASSES:
        getattr(deployments, name)
    for name in _CHOSEN:
        import_module(name)
    import_module("backends.registry.descriptions").described("")  # reads those of ours, and entry points
    # A worker may be one of a user's, with packages of the same names.
    set_aside(_DEPLOYMENTS)
