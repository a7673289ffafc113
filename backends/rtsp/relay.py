"""A connection of FFmpeg's that this process makes for it: through a port of the loopback interface.

FFmpeg opens RTSP connections itself, and nothing of it can be reached from Python: it would resolve the
host's name again, after that was checked, and a thread that waits for a camera could not be woken. So it
connects to a relay here, which has connected to the checked address, with TLS for rtsps, and copies bytes
either way. To the camera that is what a forwarded port is. Closing the relay ends FFmpeg's reading at once.
"""

import select
import socket
import ssl
import threading
from contextlib import suppress
from typing import Final

from backends.rtsp.policy import Endpoint

_CHUNK: Final = 256 << 10


class Connection:
    """A TCP or TLS connection to a checked address that another thread may abort."""

    def __init__(self, endpoint: Endpoint, timeout: float) -> None:
        """Prepare to connect; `timeout` in seconds, of connecting and of each read."""
        self._endpoint = endpoint
        self._timeout = timeout
        self._socket: socket.socket | None = None
        self._aborted = False
        self._lock = threading.Lock()

    def connect(self) -> socket.socket:
        """Connect, and shake hands for TLS: the certificate must be valid for the URL's host.

        Raises:
            OSError: it failed at every address, took too long or was aborted; ssl.SSLError is one.
        """
        *others, last = self._endpoint.addresses
        for address in others:
            try:
                return self._connect(address)
            except OSError:
                if self._aborted:
                    raise
        return self._connect(last)

    def _connect(self, address: str) -> socket.socket:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.settimeout(self._timeout)
            self._adopt(sock)
            sock.connect((address, self._endpoint.port))
            if self._endpoint.scheme in ("rtsps", "https"):
                context = ssl.create_default_context()
                sock = context.wrap_socket(
                    sock, do_handshake_on_connect=False, server_hostname=self._endpoint.host
                )
                self._adopt(sock)
                sock.do_handshake()
        except BaseException:
            sock.close()
            raise
        return sock

    def _adopt(self, sock: socket.socket) -> None:
        with self._lock:
            self._socket = sock
            if self._aborted:
                raise ConnectionAbortedError("aborted")

    def abort(self) -> None:
        """End the connection, also while it is being made; from any thread."""
        with self._lock:
            self._aborted = True
            if self._socket is not None:
                hang_up(self._socket)


def hang_up(sock: socket.socket) -> None:
    """Wake whoever waits for a socket; its owner closes it."""
    with suppress(OSError):
        # Not SSLSocket's own, which would drop the TLS layer under a thread that reads.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


class Relay:
    """Copies bytes between one connection to a port of its own and a camera.

    Attributes:
        port: where to connect to, on 127.0.0.1.
        silent: it ended because the camera sent nothing for the time of its timeout.
    """

    def __init__(self, camera: socket.socket, timeout: float) -> None:
        """Take over a connected socket; end after `timeout` seconds without a byte from it."""
        self.silent = False
        self._camera = camera
        self._timeout = timeout
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1)
        self._listener.settimeout(timeout)
        self.port: int = self._listener.getsockname()[1]
        self._client: socket.socket | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="rtsp relay", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End both connections; from any thread."""
        with self._lock:
            self._closed = True
            for sock in (self._listener, self._client, self._camera):
                if sock is not None:
                    hang_up(sock)

    def join(self) -> None:
        """Wait until it has ended."""
        self._thread.join()

    def _run(self) -> None:
        with self._camera, suppress(OSError):
            with self._listener:
                client, _ = self._listener.accept()
            with client:
                with self._lock:
                    self._client = client
                    if self._closed:
                        return
                # A write waits while the decoder is behind: then the camera's window closes.
                self._copy(client, self._camera)

    def _copy(self, client: socket.socket, camera: socket.socket) -> None:
        poll = select.poll()
        poll.register(client, select.POLLIN)
        poll.register(camera, select.POLLIN)
        patience = int(self._timeout * 1000)
        while ready := [fd for fd, _ in poll.poll(patience)]:
            if camera.fileno() in ready and not _pass_on(camera, client):
                return
            if client.fileno() in ready and not _pass_on(client, camera):
                return
        self.silent = True


def _pass_on(source: socket.socket, target: socket.socket) -> bool:
    """Copy what can be read without waiting; return False at the end."""
    # What poll has seen of TLS may be no data, and what TLS has decrypted already poll does not see.
    source.settimeout(0)
    target.settimeout(None)
    try:
        data = source.recv(_CHUNK)
        target.sendall(data)
        while isinstance(source, ssl.SSLSocket) and source.pending():
            target.sendall(source.recv(_CHUNK))
    except (BlockingIOError, ssl.SSLWantReadError):
        return True
    return bool(data)
