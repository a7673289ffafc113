"""Checks of settings against each other."""

from collections.abc import Mapping

from app.access.token_file import read_tokens
from app.core.cost.budgets import unpriced
from app.core.cost.prices import read_prices
from app.core.errors import InferError
from app.core.identifiers import SEPARATOR
from app.native.choice import is_native
from app.settings.flag.errors import SettingsError
from app.settings.fronts import GrpcSettings, HttpSettings
from app.settings.settings import MetricsSettings, RepositorySettings, ServerSettings


def check(settings: ServerSettings) -> None:
    """Refuse settings that contradict each other.

    Raises:
        SettingsError: in tritonserver's words where it has some.
    """
    _check_repository(settings.repository, on_demand=settings.residency.memory_bytes > 0)
    if settings.http.max_input_size <= 0:
        raise SettingsError("Error: --http-max-input-size must be greater than 0.")
    _check_listeners(settings)
    _check_budgets(settings)
    if settings.openai.same_port and settings.http.tfserving:
        raise SettingsError(
            "--allow-openai and --allow-tfserving both serve /v1/models/NAME on the port of HTTP: give "
            "OpenAI's API a port of its own by --openai-port"
        )
    try:
        is_native(settings.cluster.data_plane)
    except InferError as error:
        raise SettingsError(error.message) from error


def exposure(settings: ServerSettings) -> list[str]:
    """Return a warning for each front that anybody in the network may use."""
    if settings.access.tokens_file:
        return []
    return [
        f"warning: --{name}-address={front.address} lets everybody in the network use the server and change "
        "its models; --auth-tokens-file says who may"
        for name, front in settings.open_fronts().items()
        if not (front.certificates and front.certificates.root)
    ]


def _check_repository(settings: RepositorySettings, on_demand: bool) -> None:
    models = settings.startup_models
    if models and settings.control_mode != "explicit" and not on_demand:  # else they stay in memory
        raise SettingsError(
            "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well."
        )
    if "*" in models and len(set(models)) > 1:
        raise SettingsError("Wildcard model name '*' must be the ONLY startup model if specified at all.")
    for path in settings.paths if settings.namespacing else ():
        # The separator ends the namespace in a model's identifier.
        if SEPARATOR in path.rpartition("/")[2]:
            raise SettingsError(f"--model-namespacing: the repository '{path}' has '{SEPARATOR}' in its name")


def _check_budgets(settings: ServerSettings) -> None:
    """Refuse budgets of tokens that nothing would hold."""
    path, prices = settings.access.tokens_file, settings.cost.prices
    tokens = read_tokens(path) if path else ()
    budgets = {token.name: budget for token in tokens if (budget := token.spendable()) is not None}
    if budgets and not settings.cost.enabled:
        raise SettingsError(
            f"the token '{next(iter(budgets))}' has a budget, which --cost=false would not hold"
        )
    if fault := unpriced(budgets, read_prices(prices) if prices else None):
        raise SettingsError(f"{fault}; --cost-prices names one")


def _check_listeners(settings: ServerSettings) -> None:
    fronts: dict[str, HttpSettings | GrpcSettings | MetricsSettings]
    fronts = {"HTTP": settings.http, "GRPC": settings.grpc, "metrics": settings.metrics}
    fronts |= settings.plain_fronts()
    listening: dict[tuple[str, int], str] = {}
    for name, front in fronts.items():
        place = (front.address, front.port)
        if not front.enabled or not front.port:
            continue
        if place in listening:
            raise SettingsError(
                f"The server cannot listen to {listening[place]} requests and {name} requests at the same "
                f"address and port {front.address}:{front.port}"
            )
        listening[place] = name
    _check_safe_ports(settings, listening)


def _check_safe_ports(settings: ServerSettings, listening: Mapping[tuple[str, int], str]) -> None:
    """Refuse another endpoint at SageMaker's address whose port is out of `--sagemaker-safe-port-range`."""
    if settings.clouds.safe_ports is None or not settings.clouds.allow_sagemaker:
        return
    first, last = settings.clouds.safe_ports
    for (address, port), name in listening.items():
        if name != "SageMaker" and address == settings.http.address and not first <= port <= last:
            raise SettingsError(
                f"The server cannot listen to {name} requests at port {port}, allowed port range is "
                f"[{first}, {last}]"
            )
