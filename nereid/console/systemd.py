"""What systemd is told of a server that it has started (`Type=notify`): its state, and that it lives.

The protocol is that of sd_notify(3): lines in a datagram to the socket that the environment names.
"""

import os
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from typing import Final

_SOCKET: Final = "NOTIFY_SOCKET"
_WATCHDOG: Final = "WATCHDOG_USEC"
_MORE_S: Final = 60
"""Time that a start is granted anew with each message: models may take any time to load."""


def notify(**fields: object) -> None:
    """Send fields to systemd, such as `READY=1`; do nothing in a process that it has not started."""
    address = os.environ.get(_SOCKET, "")
    if not address:
        return
    message = "\n".join(f"{name}={value}" for name, value in fields.items())
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
        client.sendto(message.encode(), address.replace("@", "\0", 1) if address[0] == "@" else address)


def notify_starting(status: str) -> None:
    """Say what a start is at, and that it goes on."""
    notify(STATUS=status, EXTEND_TIMEOUT_USEC=_MORE_S * 1_000_000)


def notify_ready(status: str, url: str) -> None:
    """Say that the server is ready; from here on the watchdog hears of it, if the unit has one.

    Args:
        status: in words.
        url: of the HTTP API, which is asked whether it lives; "" for a server that cannot be asked.
    """
    notify(READY=1, STATUS=status)
    interval_s = int(os.environ.get(_WATCHDOG, "0")) / 1e6
    if interval_s and os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid()):
        arguments = url, interval_s / 3
        threading.Thread(target=_keep_alive, args=arguments, name="watchdog", daemon=True).start()


def _keep_alive(url: str, every_s: float) -> None:
    while os.environ.get(_SOCKET):
        if not url or _answers(f"{url}/v2/health/live", every_s):
            notify(WATCHDOG=1)
        time.sleep(every_s)


def _answers(url: str, timeout_s: float) -> bool:
    """Return whether anything answers, whatever it says."""
    own = ssl.create_default_context()
    own.check_hostname, own.verify_mode = False, ssl.CERT_NONE
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=own)
    )
    try:
        opener.open(url, timeout=timeout_s).close()
    except urllib.error.HTTPError as refused:
        refused.close()
    except (OSError, ValueError):
        return False
    return True
