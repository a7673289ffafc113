"""The choice of a running server, for commands about one, and questions to it."""

import argparse
import json
import os
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, NamedTuple

from nereid.console.server_record import ServerRecord, places, running_servers
from nereid_client.tools.arguments import positive

TOKEN_VARIABLE: Final = "NEREID_TOKEN"


class Unanswered(Exception):
    """The server did not answer, or refused; the text says why."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows nothing: the token is for this server."""

    def redirect_request(self, *_: Any) -> None:
        """Follow nothing."""


class Api(NamedTuple):
    """The HTTP API of a server.

    Attributes:
        url: its address; "" if it is not known.
        token: of the client; "" without one.
        own: whether the server is this user's own on this machine: its certificate need not be trusted.
        ca: file of the authority that has signed the server's certificate; "" for those of the system.
    """

    url: str
    token: str = ""
    own: bool = True
    ca: str = ""

    def ask(self, method: str, path: str, body: bytes | None = None, timeout_s: float = 5.0) -> bytes:
        """Return the body of an answer.

        Raises:
            Unanswered: there is no address, no answer, or another status than 200.
        """
        if not self.url:
            raise Unanswered("its HTTP address is not known")
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        request = urllib.request.Request(f"{self.url}{path}", body, headers, method=method)
        try:
            with _opener(self.own, self.ca).open(request, timeout=timeout_s) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                raise Unanswered(_refusal(error)) from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)  # of an error of urllib
            if isinstance(reason, ssl.SSLCertVerificationError):
                said = f"its certificate is refused ({reason.verify_message}); --ca-file names one"
                raise Unanswered(said) from None
            raise Unanswered(getattr(reason, "strerror", "") or str(reason)) from None


@cache  # reading the system's certificates takes longer than most answers
def _opener(own: bool, ca: str) -> urllib.request.OpenerDirector:
    """Return what asks servers; see `Api`."""
    try:
        context = ssl.create_default_context(cafile=ca or None)
    except (OSError, ssl.SSLError) as error:
        raise Unanswered(f"{ca}: {error.strerror or error}") from None
    if own:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    https = urllib.request.HTTPSHandler(context=context)
    return urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect, https)


def _refusal(error: urllib.error.HTTPError) -> str:
    status = f"HTTP {error.code} {HTTPStatus(error.code).phrase}"
    try:
        return f"{status}: {json.loads(error.read())['error']}"
    except (OSError, ValueError, KeyError, TypeError):
        return status


def chosen_server(command: str, about: str, example: str, argv: Sequence[str]) -> ServerRecord | None:
    """Parse the arguments of a command about one server; return the server, or print why there is none."""
    return find_server(server_parser(command, about, example).parse_args(argv).pid)


def server_parser(command: str, about: str, example: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"nereid {command}", description=about, epilog=example)
    add_pid(parser)
    return parser


def add_pid(parser: argparse.ArgumentParser) -> None:
    """Add the argument that chooses one of this user's servers."""
    parser.add_argument("--pid", type=positive, help="the server's process, if this user runs several")


def add_token(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names the file of the client's token."""
    text = f"file with the token to send; by default that of the variable {TOKEN_VARIABLE}"
    parser.add_argument("--token-file", metavar="FILE", type=_token, dest="token", help=text)


def _token(path: str) -> str:
    """Read a token: other users see the arguments of a process."""
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise argparse.ArgumentTypeError(f"{path}: {getattr(error, 'strerror', None) or error}") from None


def add_server(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that choose any server, and say as whom it is asked: see `chosen_api`."""
    parser.add_argument("--server", metavar="URL", help="of the HTTP API; by default this user's server")
    text = "certificate, in PEM, of the authority that has signed the server's; by default the system's"
    parser.add_argument("--ca-file", metavar="FILE", dest="ca", default="", help=text)
    add_pid(parser)
    add_token(parser)


def chosen_api(options: argparse.Namespace) -> Api | None:
    """Return the server to ask, by the arguments of `add_server`; print why there is none."""
    if options.server:
        return Api(options.server.rstrip("/"), given_token(options), own=False, ca=options.ca)
    record = find_server(options.pid)
    return None if record is None else api_of(record, options)


def api_of(record: ServerRecord, options: argparse.Namespace) -> Api:
    """Return the API of one of this user's servers, with the token that the arguments give."""
    return Api(record.http, given_token(options))


def given_token(options: argparse.Namespace) -> str:
    """Return the client's token; "" without one."""
    return options.token or os.environ.get(TOKEN_VARIABLE, "")


def find_server(pid: int | None) -> ServerRecord | None:
    """Return the server with this pid, or the only one; print why there is none."""
    servers = [server for server in running_servers() if pid in (None, server.pid)]
    if len(servers) == 1:
        return servers[0]
    if servers:
        print("several servers run; choose one:", file=sys.stderr)
        for server in servers:
            print(f"  --pid={server.pid}  {server.http} {' '.join(server.repositories)}", file=sys.stderr)
    else:
        which = "no server of this user" if pid is None else f"process {pid} is no server of this user that"
        print(f"{which} is registered in {', '.join(map(str, places()))}", file=sys.stderr)
        print("start one: nereid --model-repository=DIRECTORY", file=sys.stderr)
    return None
