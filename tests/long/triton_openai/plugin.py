"""What Triton's tests of its front import and start, by our server: a plugin of pytest, `-p plugin`.

It takes the place of `tests.utils`, of `tritonserver` and of FastAPI's client, so that the tests run as they
stand. Each server is one process of ours, behind an adapter at the port where the tests expect the front.
"""

import enum
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from unittest.mock import MagicMock

import fastapi.testclient
import httpx2
import openai

PORT: Final = 9000
_HERE: Final = Path(__file__).parent
_ROOT: Final = _HERE.parent.parent.parent
sys.path.insert(0, str(_HERE))
Adapter: Any = __import__("adapter").Adapter
_START_S: Final = 60.0
_DROPPED: Final = ("--enable-kserve-frontends",)


class ModelControlMode(enum.Enum):
    """As of `tritonserver`."""

    NONE = "none"
    POLL = "poll"
    EXPLICIT = "explicit"


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def download(repo_id: str, local_dir: str) -> None:
    """Write an adapter in place of one that would be downloaded."""
    shutil.copytree(os.environ["TEST_ADAPTER"], local_dir)


def made_for_vllm(words: Sequence[str]) -> list[str]:
    """Have `llm` serve what tests of LoRA write for vLLM, and the tokenizer be that of its model."""
    if "models" not in words:  # the folder of those tests
        return [*words]
    weights = Path(os.environ["TEST_MODEL_REPOSITORY"]) / "mimic" / "1" / "weights"
    for configuration in Path("models").glob("*/config.pbtxt"):
        version = configuration.parent / "1"
        if 'backend: "vllm"' not in configuration.read_text():
            continue
        configuration.write_text('backend: "llm"')
        (version / "model.json").write_text(json.dumps({"model": "weights"}))
        shutil.copytree(weights, version / "weights", dirs_exist_ok=True)
        adapters = version / "multi_lora.json"
        if adapters.is_file():
            folders = json.loads(adapters.read_text())
            adapters.write_text(json.dumps({name: Path(each).name for name, each in folders.items()}))
    tokenizer = words.index("--tokenizer") + 1
    given = os.path.abspath("models"), os.environ["TEST_TOKENIZER"]
    places = {words.index("models"): given[0], tokenizer: given[1]}
    return [places.get(place, word) for place, word in enumerate(words)]


class Package(openai.OpenAI):
    """A client that says errors with all of their body, as the package did when the tests were written."""

    def _make_status_error(
        self, err_msg: str, *, body: object, response: httpx2.Response
    ) -> openai.APIStatusError:
        if isinstance(body, dict) and "error" not in body:
            err_msg = f"{err_msg} - {body}"
        return super()._make_status_error(err_msg, body=body, response=response)


class OpenAIServer:
    """A server of ours, by the flags of Triton's `main.py`.

    Args:
        cli_args: the flags.
        env_dict: environment variables.
        port: where clients find it.
    """

    API_KEY = "EMPTY"

    def __init__(
        self, cli_args: Sequence[str], *, env_dict: Mapping[str, str] | None = None, port: int = PORT
    ) -> None:
        self.port = port
        self.stderr_lines: list[str] = []
        own, http, grpc = free_port(), free_port(), free_port()
        flags = [f"--openai-port={own}", f"--http-port={http}", f"--grpc-port={grpc}"]
        words = made_for_vllm([word for word in cli_args if word not in _DROPPED])
        if "--default-max-tokens" not in words:
            flags.append("--default-max-tokens=16")
        program = os.environ.get("NEREID_MODULE", "tests.long.qa_server")
        self.proc = subprocess.Popen(
            [sys.executable, "-m", program, *flags, "--metrics-port=0", *words],
            env={**os.environ, **(env_dict or {}), "PYTHONPATH": f"{_ROOT}{os.pathsep}{_ROOT / 'client'}"},
            cwd=_ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        threading.Thread(target=self._read, daemon=True).start()
        self._adapter = Adapter(port, own)
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise

    def _read(self) -> None:
        assert self.proc.stdout is not None
        for line in self.proc.stdout:
            self.stderr_lines.append(line.rstrip())

    def _wait(self) -> None:
        started = time.monotonic()
        while True:
            try:
                if httpx2.get(self.url_for("health", "ready")).status_code == 200:
                    return
            except httpx2.HTTPError:
                pass
            if self.proc.poll() is not None or time.monotonic() - started > _START_S:
                time.sleep(0.2)  # the rest of what it says
                raise RuntimeError("the server did not start:\n" + "\n".join(self.stderr_lines))
            time.sleep(0.05)

    def stop(self) -> None:
        """End the server."""
        self._adapter.close()
        self.proc.terminate()
        try:
            self.proc.wait(30)
        except subprocess.TimeoutExpired:
            self.proc.kill()
            self.proc.wait()

    def __enter__(self) -> "OpenAIServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url_root(self) -> str:
        return f"http://localhost:{self.port}"

    def url_for(self, *parts: str) -> str:
        return "/".join((self.url_root, *parts))

    def get_client(self) -> openai.OpenAI:
        return Package(base_url=self.url_for("v1"), api_key=self.API_KEY)

    def get_async_client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=self.url_for("v1"), api_key=self.API_KEY)


class Models:
    """What `setup_server` returns: models that are served by applications of their own."""

    def __init__(self, flags: Sequence[str]) -> None:
        self.flags = flags
        self.started: list[OpenAIServer] = []

    def stop(self) -> None:
        """End all applications."""
        while self.started:
            self.started.pop().stop()


def setup_server(
    model_repository: str,
    model_control_mode: ModelControlMode = ModelControlMode.NONE,
    load_models: Sequence[str] | None = None,
) -> Models:
    """Return models of a repository."""
    flags = ["--model-repository", model_repository, f"--model-control-mode={model_control_mode.value}"]
    return Models([*flags, *(f"--load-model={name}" for name in load_models or ())])


def setup_fastapi_app(
    tokenizer: str,
    server: Models,
    backend: str | None,
    default_max_tokens: int = 16,
    tool_call_parser: str | None = None,
    max_tool_call_parse_bytes: int | None = None,
) -> OpenAIServer:
    """Return a server of the models."""
    given = {
        "tokenizer": tokenizer,
        "backend": backend,
        "default-max-tokens": default_max_tokens,
        "tool-call-parser": tool_call_parser,
        "max-tool-call-parse-bytes": max_tool_call_parse_bytes,
    }
    flags = [word for name, value in given.items() if value for word in (f"--{name}", str(value))]
    started = OpenAIServer([*server.flags, *flags], port=free_port())
    server.started.append(started)
    return started


class Client(httpx2.Client):
    """Takes the place of FastAPI's client of an application in its process."""

    def __init__(self, app: OpenAIServer) -> None:
        super().__init__(base_url=app.url_root, timeout=100)


def _module(name: str, **members: Any) -> None:
    made = types.ModuleType(name)
    vars(made).update(members)
    sys.modules[name] = made


fastapi.testclient.TestClient = Client  # type: ignore[misc, assignment]
_module(
    "tritonserver", ModelControlMode=ModelControlMode, Server=Models, __getattr__=lambda name: MagicMock()
)
_module("vllm")
_module("huggingface_hub", snapshot_download=download)
_module(
    "tests.utils",
    OpenAIServer=OpenAIServer,
    setup_fastapi_app=setup_fastapi_app,
    setup_server=setup_server,
)
