"""`nereid console`: a server's pages for its operators, by a process of its own."""

import argparse
import asyncio
import os
import signal
import sys
import urllib.parse
from collections.abc import Sequence
from typing import Final

from app.console.server import Place, serve
from app.console.upstream import Upstream
from app.core.files.certificates import Certificates, certificates
from app.core.system.addresses import is_loopback
from nereid.console.server_record import running_servers
from nereid_client.tools.arguments import count, port

_ABOUT: Final = """Serve the console of a running server for browsers: models with their figures, requests to
try, rollouts, logs. It asks the server's own API, with the token of whoever looks at it."""
_EXAMPLE: Final = "example: nereid console --url http://127.0.0.1:8000 --port 8003"
_PLAIN: Final = (
    "warning: --console-address={} without TLS: tokens pass the network as they are; --console-use-ssl with "
    "--console-server-cert and --console-server-key encrypts them, if no proxy in front does"
)
_DEFAULTS: Final = Place()


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    given = _parser().parse_args(argv)
    url = given.url or next((server.http for server in running_servers() if server.http), "")
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        print("nereid console: name the server: --url http://127.0.0.1:8000", file=sys.stderr)
        return 2
    upstream = Upstream(url, given.ca_file, trusted=is_loopback(parts.hostname))
    origins, hosts = tuple(given.allow_origin), tuple(given.allow_host)
    try:
        place = Place(given.address, given.port, origins, hosts, _certificates(given))
        asyncio.run(_serve(upstream, place, given.parent))
    except ValueError as error:
        print(f"nereid console: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"nereid console: cannot listen at {given.address}:{given.port}: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="nereid console", description=_ABOUT, epilog=_EXAMPLE)
    parser.add_argument("--url", default="", help="the server's HTTP API; by default of this user's server")
    parser.add_argument("--address", default=_DEFAULTS.address, help="to listen at (%(default)s)")
    parser.add_argument("--port", type=port, default=_DEFAULTS.port, help="%(default)s; 0 for a free one")
    parser.add_argument("--ca-file", default="", help="PEM file of the authority of the server's certificate")
    parser.add_argument(
        "--server-cert", default="", help="PEM file of the console's own certificate, for TLS"
    )
    parser.add_argument("--server-key", default="", help="PEM file of its key")
    parser.add_argument("--root-cert", default="", help="PEM file of the authority of browsers' certificates")
    parser.add_argument(
        "--allow-origin", action="append", default=[], help="origin of a proxy in front, as https://HOST"
    )
    parser.add_argument("--allow-host", action="append", default=[], help="further name of this console")
    parser.add_argument("--parent", type=count, default=0, help=argparse.SUPPRESS)
    return parser


def _certificates(given: argparse.Namespace) -> Certificates | None:
    files = (given.server_cert, given.server_key, given.root_cert)
    if not is_loopback(given.address) and not any(files):
        print(_PLAIN.format(given.address), file=sys.stderr)
    return certificates("console", any(files), bool(given.root_cert), files)


async def _serve(upstream: Upstream, place: Place, parent: int) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if parent and not _follow(parent, stop):
        return
    await serve(upstream, place, stop, lambda port: _tell(upstream, place, port, parent))


def _follow(parent: int, stop: asyncio.Event) -> bool:
    """End with a process; return whether it is there."""
    try:
        end = os.pidfd_open(parent)
    except OSError:
        return False
    if os.getppid() != parent:
        return False
    asyncio.get_running_loop().add_reader(end, stop.set)
    return True


def _tell(upstream: Upstream, place: Place, port: int, parent: int) -> None:
    if not parent:
        host = f"[{place.address}]" if ":" in place.address else place.address
        scheme = "https" if place.certificates else "http"
        print(f"Console of {upstream.url}: {scheme}://{host}:{port}  (Ctrl-C ends it)", flush=True)
