"""Calls of models from another Serve application of the same cluster.

    from nereid import model_handle

    simple = model_handle("simple")
    outputs = await simple.remote({"INPUT0": array, "INPUT1": array})

An ingress of the server receives the call and routes it like a request of a client: reloads, ensembles and
sequences need nothing of the caller, and nothing of the server is imported in the caller's process.
"""

from typing import TYPE_CHECKING, Any

from nereid.internals import NAME

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle


class ModelHandle:
    """Calls of one model. May be used from any thread or event loop, and pickled."""

    def __init__(self, ingress: "DeploymentHandle[Any]", name: str, version: str) -> None:
        """Use `model_handle`."""
        self._ingress = ingress
        self._name = name
        self._version = version

    def options(self, **options: Any) -> "ModelHandle":
        """Return a handle with other options of Serve's handles: `stream=True` for a decoupled model."""
        return ModelHandle(self._ingress.options(**options), self._name, self._version)

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model: `remote(inputs, outputs=(), parameters=None, request_id="")`.

        Args:
            inputs: arrays by input name, batch dimension included; strings or bytes for BYTES, uint16
                patterns or `ml_dtypes.bfloat16` for BF16.
            outputs: names of the outputs wanted; all of them by default.
            parameters: custom parameters.
            request_id: the name of the request in logs and traces.

        Returns:
            Serve's response: `await` it or call its `result()`; with `stream=True`, iterate over it. It is a
            dict of arrays by output name, BYTES as object arrays of bytes.

        Raises:
            nereid.InferError: when the response is awaited, as a subclass that Serve makes.
        """
        return self._ingress.remote(self._name, self._version, *args, **kwargs)


def model_handle(name: str, version: str | int = "", application: str = NAME) -> ModelHandle:
    """Return a handle of a model that is served in this cluster.

    Args:
        name: the model.
        version: the version; by default the highest that is ready.
        application: the Serve application of the server.

    Raises:
        KeyError: no such application runs.
        ray.serve.exceptions.RayServeException: Serve does not run in this cluster.
    """
    from ray import serve

    ingress = serve.get_deployment_handle("ingress", application)
    return ModelHandle(ingress.options(method_name="call"), name, str(version))
