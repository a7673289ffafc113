"""The server of the in-process API."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from app.core.observability.log import configure_logging
from app.ingress.metrics.machine import Machine
from app.ingress.metrics.page import render
from app.protocol.http.messages import encode_server_metadata
from nereid.engine.engine import Engine
from nereid.engine.fronts import process_metrics
from nereid.inprocess.errors import (
    InternalError,
    InvalidArgumentError,
    UnavailableError,
    UnsupportedError,
    triton_errors,
)
from nereid.inprocess.kinds import MetricFormat, ModelControlMode
from nereid.inprocess.logs import send_records
from nereid.inprocess.model import Model
from nereid.inprocess.options import Options


class ModelDictionary(dict[tuple[str, int], Model]):
    """Models by name and version; a name alone is that model's version by its policy."""

    def __init__(self, server: "Server", models: list[Model]) -> None:
        super().__init__({(model.name, model.version): model for model in models})
        self._server = server

    def __getitem__(self, key: str | tuple[str, int]) -> Model:
        if isinstance(key, tuple):
            return super().__getitem__(key)
        if not any(name == key for name, _ in self):
            raise KeyError(key)
        return self._server.model(key)


class Server:
    """A server in this process; `with Server(...) as server` starts and stops it.

    Args:
        options: how it is started; by default `Options` of the keywords.

    Attributes:
        fronts: close the fronts that are open.
    """

    def __init__(self, options: Options | None = None, **fields: Any) -> None:
        try:
            self.options = Options(**fields) if options is None else options
        except TypeError as error:
            raise InvalidArgumentError(str(error)) from None
        self._engine: Engine | None = None
        self.fronts: list[Callable[[], None]] = []

    def start(
        self, wait_until_ready: bool = False, polling_interval: float = 0.1, timeout: float | None = None
    ) -> "Server":
        """Load the models of the start; return this server.

        Args:
            wait_until_ready: whether to wait until every model is ready.
            polling_interval: seconds between looks at that.
            timeout: seconds to wait for it; None for ever.

        Raises:
            InvalidArgumentError: the options cannot be used, or the server runs.
            InternalError: a repository is missing or a model could not be loaded, and `exit_on_error` is set.
            TypeError: an option of another type.
            UnavailableError: not ready in time.
        """
        if self._engine is not None:
            raise InvalidArgumentError("Server already started")
        with triton_errors():
            settings = self.options.settings()
            send_records(self.options.log_callback)
            configure_logging(settings.log)
            self._engine = Engine(settings)
            try:
                self._engine.start()
                self._check_loaded(self._engine)
            except BaseException:
                self.stop()
                raise
        if wait_until_ready:
            self._wait_ready(polling_interval, timeout)
        return self

    def _check_loaded(self, engine: Engine) -> None:
        if self.options.exit_on_error and not engine.repository.lifecycle.all_loaded:
            listed = engine.index()
            failed = [f"{name}: {reason}" for name, _, state, reason in listed if state != "READY" and reason]
            raise InternalError("failed to load all models\n" + "\n".join(failed))

    def _wait_ready(self, polling_interval: float, timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.ready():
            if deadline is not None and time.monotonic() > deadline:
                raise UnavailableError("Timeout before ready")
            time.sleep(polling_interval)

    def stop(self) -> None:
        """Close the fronts, answer the requests in flight and unload every model."""
        fronts, self.fronts = self.fronts, []
        for close in fronts:
            close()
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    def __enter__(self) -> "Server":
        return self if self._engine is not None else self.start(wait_until_ready=True)

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def engine(self) -> Engine:
        """What serves the models.

        Raises:
            InvalidArgumentError: the server is not started.
        """
        if self._engine is None:
            raise InvalidArgumentError("Server not started")
        return self._engine

    def live(self) -> bool:
        """Return whether the server is live."""
        return bool(self.engine.on_loop(self.engine.service.live))

    def ready(self) -> bool:
        """Return whether the server is ready, with `strict_readiness` every model too."""
        return bool(self.engine.on_loop(self.engine.service.ready))

    def metadata(self) -> dict[str, Any]:
        """Return name, version and extensions."""
        found: dict[str, Any] = msgspec.json.decode(
            encode_server_metadata(self.engine.service.server_metadata())
        )
        return found

    def metrics(self, metric_format: MetricFormat = MetricFormat.PROMETHEUS) -> str:
        """Return the page of metrics, in the text format of Prometheus."""
        engine = self.engine
        if not self.options.metrics:
            raise UnavailableError("metrics not available")
        machine = Machine(self.options.cpu_metrics, self.options.gpu_metrics, self.options.metrics_interval)
        config = engine.settings.metrics.config
        page = render(engine.service, config, machine, None, process_metrics())
        return engine.plane.call(page).decode()

    def model(self, model_name: str, model_version: int = -1) -> Model:
        """Return a model, which is not checked until it is used."""
        return Model(self.engine, model_name, model_version)

    def models(self, exclude_not_ready: bool = False) -> ModelDictionary:
        """Return the models of the repositories, by name and version (-1 for one without any)."""
        engine = self.engine
        with triton_errors():
            found = engine.index(exclude_not_ready)
        return ModelDictionary(
            self,
            [
                Model(engine, name, int(version or -1), state or None, reason or None)
                for name, version, state, reason in found
            ],
        )

    def load(
        self, model_name: str, parameters: Mapping[str, str | int | bool | bytes] | None = None
    ) -> Model:
        """Load or reload a model, in mode EXPLICIT; return it when it is ready.

        Args:
            model_name: its name.
            parameters: `config`, a configuration as JSON, and files as `file:<path>`.

        Raises:
            TritonError: the load failed; versions that were served still are.
        """
        given = dict(parameters or {})
        config = given.pop("config", None)
        files = {}
        for name, content in given.items():
            if not name.startswith("file:") or not isinstance(content, bytes):
                raise InvalidArgumentError(
                    f"load parameter '{name}' is neither 'config' nor a file's content"
                )
            files[name.removeprefix("file:")] = content
        with triton_errors():
            self.engine.load(model_name, None if config is None else str(config), files)
        return self.model(model_name)

    def unload(
        self,
        model: str | Model,
        unload_dependents: bool = False,
        wait_until_unloaded: bool = False,
        polling_interval: float = 0.1,
        timeout: float | None = None,
    ) -> None:
        """Unload a model, and with `unload_dependents` those loaded only for it; return when it is unloaded.

        The other arguments are for programs that give them: there is nothing left to wait for.
        """
        with triton_errors():
            self.engine.unload(model if isinstance(model, str) else model.name, unload_dependents)

    def register_model_repository(
        self, repository_path: str, name_mapping: Mapping[str, str] | None = None
    ) -> None:
        """Add a local repository, in mode EXPLICIT.

        Raises:
            UnsupportedError: other names are given, or the mode is another.
        """
        if name_mapping:
            raise UnsupportedError("models cannot be given other names than those of their directories")
        self._require(ModelControlMode.EXPLICIT)
        with triton_errors():
            self.engine.repository.catalog.add_repository(repository_path)

    def unregister_model_repository(self, repository_path: str) -> None:
        """Remove a repository, in mode EXPLICIT; its loaded models are served on."""
        self._require(ModelControlMode.EXPLICIT)
        with triton_errors():
            self.engine.repository.catalog.remove_repository(repository_path)

    def poll_model_repository(self) -> None:
        """Load and unload models as the repositories are now, in mode POLL."""
        self._require(ModelControlMode.POLL)
        with triton_errors():
            self.engine.plane.call(self._poll())

    async def _poll(self) -> None:
        repository = self.engine.repository
        await repository.poll()
        while repository.settling:  # changed files are loaded once they were found twice as they are
            await repository.poll()

    def _require(self, mode: ModelControlMode) -> None:
        if self.options.model_control_mode is not mode:
            raise UnsupportedError(f"this needs model_control_mode {mode.name}")
