"""Emulators of clouds' storage: real servers, each a process of its own, with one bucket."""

import contextlib
import json
import socket
import subprocess
import sys
import threading
import urllib.parse
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from tests.server import ROOT, free_port, wait_until

BUCKET = "bucket"
AZURITE = ROOT / "build" / "azurite" / "node_modules" / ".bin" / "azurite-blob"
"""Where `make test-remote` installs Azurite."""


class Cloud(ABC):
    """An emulator that is running, and clients' view of it: `port` may be that of something in between."""

    scheme: ClassVar[str]

    def __init__(self) -> None:
        self.host = "127.0.0.1"
        self.own_port = self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @classmethod
    def missing(cls) -> str:
        """What would have to be installed; "" when all is there."""
        return ""

    @property
    @abstractmethod
    def url(self) -> str:
        """The repository's address."""

    @property
    @abstractmethod
    def variables(self) -> dict[str, str]:
        """The environment that leads Triton to it, credentials included."""

    @property
    @abstractmethod
    def credential(self) -> tuple[Any, dict[str, str]]:
        """The same as an entry of the credential file, and the variables that remain."""

    @abstractmethod
    def put(self, path: str, content: bytes) -> None:
        """Write a file of the repository."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Remove a file of the repository."""

    @abstractmethod
    def _command(self) -> list[str]: ...

    @abstractmethod
    def _make_bucket(self) -> None: ...

    def start(self) -> None:
        """Start the emulator, empty but for its bucket."""
        self.process = subprocess.Popen(
            self._command(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_until(self._listens, 60.0, f"the emulator of {self.scheme}:// listens")
        self._make_bucket()

    def kill(self) -> None:
        """End the emulator at once."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def _listens(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.own_port), 1):
            return True
        return False


class S3(Cloud):
    """Moto's server, addressed by endpoint as Aliyun's OSS and MinIO are."""

    scheme = "s3"

    @property
    def url(self) -> str:
        return f"s3://http://{self.host}:{self.port}/{BUCKET}/models"

    @property
    def variables(self) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": "id",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    @property
    def credential(self) -> tuple[Any, dict[str, str]]:
        return {"key_id": "id", "secret_key": "secret", "region": "us-east-1"}, {}

    def _command(self) -> list[str]:
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.own_port)]

    def _client(self) -> Any:
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{self.own_port}",
            region_name="us-east-1",
            aws_access_key_id="id",
            aws_secret_access_key="secret",
        )

    def _make_bucket(self) -> None:
        self._client().create_bucket(Bucket=BUCKET)

    def put(self, path: str, content: bytes) -> None:
        self._client().put_object(Bucket=BUCKET, Key=f"models/{path}", Body=content)

    def delete(self, path: str) -> None:
        self._client().delete_object(Bucket=BUCKET, Key=f"models/{path}")


class Gcs(Cloud):
    """The package gcp-storage-emulator, with a service account whose tokens come from `tokens`."""

    scheme = "gs"

    def __init__(self, directory: Path, token_uri: str) -> None:
        super().__init__()
        self.key_file = directory / "service_account.json"
        self.key_file.write_text(json.dumps(service_account(token_uri)))

    @property
    def url(self) -> str:
        return f"gs://{BUCKET}/models"

    @property
    def variables(self) -> dict[str, str]:
        return {**self._endpoint, "GOOGLE_APPLICATION_CREDENTIALS": str(self.key_file)}

    @property
    def credential(self) -> tuple[Any, dict[str, str]]:
        return str(self.key_file), self._endpoint

    @property
    def _endpoint(self) -> dict[str, str]:
        return {"STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{self.port}"}

    def _command(self) -> list[str]:
        command = [str(Path(sys.executable).parent / "gcp-storage-emulator"), "start", "--in-memory"]
        return [*command, "--host=127.0.0.1", f"--port={self.own_port}"]

    def _ask(self, method: str, path: str, body: bytes | None = None, kind: str = "json") -> None:
        address = f"http://127.0.0.1:{self.own_port}{path}"
        headers = {"Content-Type": f"application/{kind}"}
        request = urllib.request.Request(address, body, headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as response:
            response.read()

    def _make_bucket(self) -> None:
        self._ask("POST", "/storage/v1/b?project=p", json.dumps({"name": BUCKET}).encode())

    def put(self, path: str, content: bytes) -> None:
        name = urllib.parse.quote(f"models/{path}", safe="")
        self._ask(
            "POST", f"/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={name}", content, "octet-stream"
        )

    def delete(self, path: str) -> None:
        self._ask("DELETE", f"/storage/v1/b/{BUCKET}/o/{urllib.parse.quote(f'models/{path}', safe='')}")


class Azure(Cloud):
    """Azurite, which checks signatures; the account and its key are the ones it documents."""

    scheme = "as"
    account = "devstoreaccount1"
    key = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

    @classmethod
    def missing(cls) -> str:
        return "" if AZURITE.exists() else "Azurite: make test-remote installs it"

    @property
    def url(self) -> str:
        return f"as://http://127.0.0.1:{self.port}/{self.account}/{BUCKET}/models"

    @property
    def variables(self) -> dict[str, str]:
        return {"AZURE_STORAGE_ACCOUNT": self.account, "AZURE_STORAGE_KEY": self.key}

    @property
    def credential(self) -> tuple[Any, dict[str, str]]:
        return {"account_str": self.account, "account_key": self.key}, {}

    def _command(self) -> list[str]:
        command = [str(AZURITE), "--inMemoryPersistence", "--silent", "--skipApiVersionCheck"]
        return [*command, "--disableTelemetry", f"--blobPort={self.own_port}"]

    def _container(self) -> Any:
        from azure.storage.blob import BlobServiceClient

        address = f"http://127.0.0.1:{self.own_port}/{self.account}"
        return BlobServiceClient(address, self.key).get_container_client(BUCKET)

    def _make_bucket(self) -> None:
        with self._container() as container:
            container.create_container()

    def put(self, path: str, content: bytes) -> None:
        with self._container() as container:
            container.upload_blob(f"models/{path}", content, overwrite=True)

    def delete(self, path: str) -> None:
        with self._container() as container:
            container.delete_blob(f"models/{path}")


def service_account(token_uri: str) -> dict[str, str]:
    """A key file of a service account, whose key was made for it."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return {
        "type": "service_account",
        "project_id": "p",
        "private_key_id": "1",
        "private_key": key.decode(),
        "client_email": "nereid@p.iam.gserviceaccount.com",
        "client_id": "1",
        "token_uri": token_uri,
    }


class Cable:
    """Carries bytes between clients and a server, and may break once it has carried enough of them."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.break_after: int | None = None
        self.asked = bytearray()
        """What clients sent."""
        self.broken: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._server_port))
                except OSError:
                    client.close()
                    continue
                threading.Thread(target=self._join, args=(client, server), daemon=True).start()

    def _join(self, client: socket.socket, server: socket.socket) -> None:
        with client, server:
            requests = threading.Thread(target=self._carry, args=(client, server, False), daemon=True)
            requests.start()
            self._carry(server, client, True)
            requests.join()

    def _carry(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if answers and self._breaks(len(data)):
                    break
                if not answers:
                    self.asked += data
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _breaks(self, size: int) -> bool:
        with self._lock:
            if self.break_after is None:
                return False
            self.break_after -= size
            if self.break_after > 0:
                return False
            self.broken()
            return True


@contextlib.contextmanager
def tokens() -> Iterator[tuple[str, list[bytes]]]:
    """A server of access tokens: its address, and what it was asked."""
    from http.server import BaseHTTPRequestHandler, HTTPServer

    asked: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.rfile.read(int(self.headers["Content-Length"])))
            body = json.dumps({"access_token": "t", "expires_in": 3600, "token_type": "Bearer"}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/token", asked
    server.shutdown()
    server.server_close()
