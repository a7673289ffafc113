"""A whole server that asks for tokens, with two ingress replicas."""

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.cluster.conftest import write_ensemble, write_model
from tests.server import ROOT, Server, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

COUNTED = r'nereid_token_requests{outcome="ok",token="infer"} (.*)'
MODULES: dict[str, Any] = {"http": tritonclient.http, "grpc": tritonclient.grpc}


def token(*words: str) -> str:
    """Run `nereid token`."""
    command = [sys.executable, "-m", "nereid", "token", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()


class Guarded(NamedTuple):
    """A server, its file of tokens, its audit log, and two tokens."""

    server: Server
    file: Path
    audit: Path
    infer: str
    manage: str

    def new(self, name: str, *options: str) -> str:
        return token("new", "--name", name, "--file", str(self.file), *options)

    def ask(self, protocol: str, secret: str, model: str = "steady", tensor: str = "INPUT0") -> None:
        """Infer on a connection of its own, so that both ingress replicas are asked."""
        module = MODULES[protocol]
        given = module.InferInput(tensor, [1, 16], "FP32")
        given.set_data_from_numpy(np.zeros((1, 16), np.float32))
        url = self.server.http_url if protocol == "http" else self.server.grpc_url
        options = {} if protocol == "http" else {"channel_args": [("grpc.use_local_subchannel_pool", 1)]}
        with module.InferenceServerClient(url, **options) as client:
            client.infer(model, [given], headers={"authorization": f"Bearer {secret}"})

    def answers(self, protocol: str, secret: str, model: str = "steady", tensor: str = "INPUT0") -> set[str]:
        """What some requests get: "ok", or the status of a refusal."""
        return {self._outcome(protocol, secret, model, tensor) for _ in range(8)}

    def _outcome(self, *arguments: str) -> str:
        try:
            self.ask(*arguments)
        except InferenceServerException as error:
            return str(error.status())
        return "ok"

    def lines(self) -> list[dict[str, str]]:
        return [json.loads(line) for line in self.audit.read_text().splitlines()]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    directory = tmp_path_factory.mktemp("tokens")
    write_model(directory / "models", "steady")
    write_ensemble(directory / "models", "chain")
    file, audit = directory / "tokens.jsonl", directory / "audit.jsonl"
    infer = token("new", "--scope=infer", "--name=infer", "--models=chain,ste*", f"--file={file}")
    manage = token("new", "--scope=manage,metrics", "--name=manage", f"--file={file}")
    arguments = [
        f"--model-repository={directory / 'models'}",
        "--model-control-mode=explicit",
        "--load-model=*",
        "--ingress-replicas=2",
        f"--auth-tokens-file={file}",
        f"--audit-log={audit}",
    ]
    server = Server(arguments, directory / "server.log").start()
    yield Guarded(server, file, audit, infer, manage)
    server.stop()


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_only_tokens_with_the_right_infer(guarded: Guarded, protocol: str) -> None:
    denied = {"http": "403", "grpc": "StatusCode.PERMISSION_DENIED"}[protocol]
    unknown = {"http": "401", "grpc": "StatusCode.UNAUTHENTICATED"}[protocol]
    assert guarded.answers(protocol, guarded.infer) == {"ok"}
    assert guarded.answers(protocol, guarded.manage) == {denied}
    assert guarded.answers(protocol, "nobody") == {unknown}


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_right_to_an_ensemble_suffices_for_its_steps(guarded: Guarded, protocol: str) -> None:
    secret = guarded.new(f"chain-{protocol}", "--scope=infer", "--models=chain")
    in_force = lambda: guarded.answers(protocol, secret, "chain", "IN") == {"ok"}  # noqa: E731
    wait_until(in_force, 10, "the token is in force")
    assert guarded.answers(protocol, secret).isdisjoint({"ok"})


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_changes_of_the_file_are_in_force_in_every_ingress(guarded: Guarded, protocol: str) -> None:
    unknown = {"http": "401", "grpc": "StatusCode.UNAUTHENTICATED"}[protocol]
    secret = guarded.new(f"late-{protocol}", "--scope=infer")
    wait_until(lambda: guarded.answers(protocol, secret) == {"ok"}, 10, "the token is in force")
    token("revoke", f"late-{protocol}", "--file", str(guarded.file))
    wait_until(lambda: guarded.answers(protocol, secret) == {unknown}, 10, "the token is revoked")
    assert guarded.answers(protocol, guarded.infer) == {"ok"}


def test_a_broken_file_changes_nothing_and_is_told(guarded: Guarded) -> None:
    text = guarded.file.read_text()
    with guarded.file.open("a") as file:
        file.write("{\n")
    wait_until(lambda: guarded.server.output().count("stay as they were") == 2, 10, "both ingresses tell")
    assert guarded.answers("http", guarded.infer) == {"ok"}
    guarded.file.write_text(text)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_changes_of_models_are_in_the_audit_log(guarded: Guarded, protocol: str) -> None:
    module, before = MODULES[protocol], len(guarded.lines())
    url = guarded.server.http_url if protocol == "http" else guarded.server.grpc_url
    with module.InferenceServerClient(url) as client:
        client.load_model("steady", headers={"authorization": guarded.manage})
        with pytest.raises(InferenceServerException):
            client.load_model("absent", headers={"authorization": guarded.manage})
        with pytest.raises(InferenceServerException):
            client.unload_model("steady", headers={"authorization": guarded.infer})
    loaded, failed, refused = guarded.lines()[before:]
    assert (loaded["action"], loaded["subject"], loaded["who"], loaded["outcome"]) == (
        "load", "steady", "manage", "ok"
    )  # fmt: skip
    assert (failed["subject"], failed["outcome"]) == ("absent", "failed") and failed["reason"]
    assert (refused["action"], refused["who"], refused["outcome"]) == ("unload", "infer", "denied")
    assert {line["protocol"] for line in (loaded, failed, refused)} == {protocol}
    assert loaded["peer"].startswith("127.0.0.1:")
    assert guarded.audit.stat().st_mode & 0o077 == 0


def test_metrics_count_by_token_for_who_may_read_them(guarded: Guarded) -> None:
    guarded.ask("http", guarded.infer)
    url = f"http://127.0.0.1:{guarded.server.metrics_port}/metrics"
    with pytest.raises(HTTPError) as refused:
        urllib.request.urlopen(url, timeout=10)
    with refused.value as answer:
        assert (answer.code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {guarded.manage}"})

    def counted() -> bool:
        """The page is that of one ingress replica, which may not be the one that was asked before."""
        with urllib.request.urlopen(request, timeout=10) as page:
            text = page.read().decode()
        return any(float(n) > 0 for n in re.findall(COUNTED, text))

    wait_until(counted, 10, "a page counts an inference of the token")


def test_probes_need_no_token(guarded: Guarded) -> None:
    assert guarded.server.get("/v2/health/ready")[0] == 200
    with tritonclient.grpc.InferenceServerClient(guarded.server.grpc_url) as client:
        assert client.is_server_live() and client.is_server_ready()


@pytest.mark.parametrize("text", ["{", None])
def test_a_server_does_not_start_with_a_file_that_cannot_be_used(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "tokens"
    file.write_text(text or "")
    file.chmod(0o600 if text else 0o644)
    (tmp_path / "models").mkdir()
    command = [sys.executable, "-m", "nereid", f"--model-repository={tmp_path / 'models'}"]
    done = subprocess.run(
        [*command, f"--auth-tokens-file={file}"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    reason = "line 1: " if text else "others than its owner may use it: chmod 600 it"
    assert done.stderr.startswith(f"--auth-tokens-file: '{file}': {reason}")
