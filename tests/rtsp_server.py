"""An RTSP server for tests: one track of H.264, RTP interleaved with RTSP over TCP, or over UDP.

It answers OPTIONS, DESCRIBE, SETUP, PLAY and TEARDOWN, and sends RTP packets that FFmpeg's muxer has made.
"""

import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType

from tests.video import SDP, timed

Answer = tuple[str, Mapping[str, str], bytes]
Override = Callable[[str, Mapping[str, str]], Answer | None]
"""Returns another answer to a method with these headers (status, headers, body), None for the usual."""

_CLIENT_PORT = re.compile(r"client_port=(\d+)")


class RtspServer:
    """Serves packets to any number of clients, each from the first packet on.

    Attributes:
        played: how many clients have sent PLAY.
        requests: the request lines received.
    """

    def __init__(
        self,
        packets: Sequence[bytes],
        speed: float = 0.0,
        rounds: int = 1,
        holds: bool = False,
        override: Override | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Listen on a free port of 127.0.0.1.

        Args:
            packets: RTP packets of a clip.
            speed: 1 sends in real time; 0 as fast as the client reads.
            rounds: how often to send the clip, with later times each; then the connection ends.
            holds: keep the connection open after the last packet.
            override: answers in place of the server.
            tls: have clients connect with TLS.
        """
        self._packets = list(timed(list(packets)))
        self._speed, self._rounds, self._holds, self._override = speed, rounds, holds, override
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.played = 0
        self.requests: list[str] = []
        self._clients: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._accept, name="rtsp server", daemon=True)

    @property
    def url(self) -> str:
        """The address of its stream."""
        return f"{'rtsps' if self._tls else 'rtsp'}://127.0.0.1:{self.port}/stream"

    @property
    def clients(self) -> int:
        """Connections open now."""
        return len(self._clients)

    def __enter__(self) -> "RtspServer":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        self.hang_up()

    def hang_up(self) -> None:
        """End all connections."""
        for client in list(self._clients):
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._clients.add(client)
            threading.Thread(target=self._receive, args=(client,), daemon=True).start()

    def _receive(self, client: socket.socket) -> None:
        try:
            self._serve(self._tls.wrap_socket(client, server_side=True) if self._tls else client)
        except OSError:  # the client does not trust the certificate
            client.close()
        self._clients.discard(client)

    def _serve(self, client: socket.socket) -> None:
        udp: tuple[str, int] | None = None
        with client, suppress(OSError, ValueError), client.makefile("rb") as reader:
            while line := reader.readline():
                if line.startswith(b"$"):  # a receiver report
                    reader.read(int.from_bytes((line + reader.read(4))[2:4], "big"))
                    continue
                headers = _headers(reader.readline)
                self._answer(client, line.decode().strip(), headers)
                if found := _CLIENT_PORT.search(headers.get("transport", "")):
                    udp = ("127.0.0.1", int(found[1]))
                if line.startswith(b"PLAY "):
                    self.played += 1
                    self._send(client, udp)
                    if not self._holds:
                        break

    def _answer(self, client: socket.socket, line: str, headers: Mapping[str, str]) -> None:
        self.requests.append(line)
        method = line.partition(" ")[0]
        other = self._override(method, headers) if self._override else None
        status, extra, body = other or _usual(method, headers)
        fields = {"CSeq": headers.get("cseq", "0"), **extra}
        if body:
            fields |= {"Content-Type": "application/sdp", "Content-Length": str(len(body))}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        client.sendall(f"RTSP/1.0 {status}\r\n{head}\r\n".encode() + body)

    def _send(self, client: socket.socket, udp: tuple[str, int] | None) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
            for packet in self._paced():
                if udp is not None:
                    datagrams.sendto(packet, udp)
                else:
                    client.sendall(b"$\x00" + len(packet).to_bytes(2, "big") + packet)

    def _paced(self) -> Iterator[bytes]:
        began = time.monotonic()
        length = self._packets[-1][0] + 1 / 30
        sequence = 0
        for number in range(self._rounds):
            for at, packet in self._packets:
                at += number * length
                if self._speed and (wait := at / self._speed - (time.monotonic() - began)) > 0:
                    time.sleep(wait)  # a camera sends in real time
                stamp = round(at * 90_000) % (1 << 32)
                yield packet[:2] + sequence.to_bytes(2, "big") + stamp.to_bytes(4, "big") + packet[8:]
                sequence = (sequence + 1) % (1 << 16)


def _headers(readline: Callable[[], bytes]) -> dict[str, str]:
    headers = {}
    while line := readline().decode().strip():
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    return headers


def _usual(method: str, headers: Mapping[str, str]) -> Answer:
    if method == "OPTIONS":
        return "200 OK", {"Public": "OPTIONS, DESCRIBE, SETUP, PLAY, TEARDOWN"}, b""
    if method == "DESCRIBE":
        return "200 OK", {}, SDP.encode()
    if method == "SETUP":
        return "200 OK", {"Transport": headers["transport"], "Session": "1"}, b""
    return "200 OK", {"Session": "1"}, b""
