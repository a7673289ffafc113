"""Loads of one model with other configurations; nothing of its repository is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from nereid_client import Server, ServerError
from nereid_client.tools.analyze.space import Candidate, configured
from nereid_client.tools.perf.bench import Progress
from nereid_client.tools.perf.options import PerfError

_LOAD_S: Final = 300.0


class Loads:
    """A model whose configuration is changed by loads; `restore` loads that which it had.

    Args:
        server: has the model.
        model: its name.
        progress: is told of each load.
        thread_parameters: the parameters of models that say how many threads an instance computes with, by
            backend.

    Attributes:
        config: its configuration before.
        threads: the parameter that says how many threads an instance computes with; "" for none.
    """

    def __init__(
        self, server: Server, model: str, progress: Progress, thread_parameters: Mapping[str, str]
    ) -> None:
        self._server, self._model, self._progress = server, model, progress
        self._applied: Candidate | None = None
        self.config = server.model(model).described()[1]
        self.threads = thread_parameters.get(self.config.get("backend", ""), "")

    def apply(self, candidate: Candidate) -> None:
        """Load the model with a candidate's configuration; nothing is written.

        Raises:
            PerfError: the server does not load it.
        """
        if candidate == self._applied:
            return
        self._progress.tick(f"load {self._model}: {candidate}", 0, 1)
        self._load(configured(self.config, candidate, self.threads))
        self._applied = candidate

    def restore(self) -> None:
        """Load the model as it was: by its files, or, if that is another one, by its configuration."""
        if self._applied is None:
            return
        self._load(None)
        if self._server.model(self._model).described()[1] != self.config:
            self._load(self.config)
        self._applied = None

    def _load(self, config: Mapping[str, Any] | None) -> None:
        model = self._model
        try:
            self._server.load(model, config, timeout=_LOAD_S)
            self._server.wait_ready(model, timeout=_LOAD_S)
        except ServerError as error:
            hint = (
                ": run it with --model-control-mode=explicit" if "explicit" in error.message.lower() else ""
            )
            raise PerfError(f"the server does not load '{model}': {error.message}{hint}") from None
