"""Models that are loaded, reloaded and unloaded while others are asked."""

import json

import numpy as np

from tests.long.client import Client, check
from tests.long.outcomes import Refused, Wrong, refusals


def reload(client: Client) -> None:
    """Load a model in another form, beside the one in service."""
    with refusals():
        config = client.http.get_model_config("reloaded")
        config["parameters"] = {"n": {"string_value": str(client.random.getrandbits(60))}}
        client.http.load_model("reloaded", config=json.dumps(config))
        found = client.http.get_model_config("reloaded")
    if found["parameters"]["n"] != config["parameters"]["n"]:
        raise Wrong(f"reloaded: the answered load is not in service: {found['parameters']}")


def come_and_go(client: Client) -> None:
    """Load a model, ask it and unload it: it answers at once, and then no more."""
    values = client.values()
    with refusals():
        client.grpc.load_model("coming")
    check(client.infer("coming", {"INPUT0": values})("OUTPUT0"), values, "coming")
    with refusals():
        client.grpc.unload_model("coming")
    _check_gone(client, values)


def _check_gone(client: Client, values: np.ndarray) -> None:
    try:
        client.infer("coming", {"INPUT0": values})
    except Refused as error:
        if "Request for unknown model" not in error.refusal.text:
            raise
    else:
        raise Wrong("coming: answered after it was unloaded")
