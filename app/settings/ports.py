"""Checks that the ports of the fronts are free."""

import socket

from app.settings.flag.errors import SettingsError
from app.settings.settings import ServerSettings


def check_ports(settings: ServerSettings) -> None:
    """Refuse a port that another program uses, unless `--reuse-http-port` or `--reuse-grpc-port` allows it.

    SO_REUSEPORT alone would let two servers share a port without notice.

    Raises:
        SettingsError: a service cannot listen (tritonserver's text).
    """
    wanted = (
        ("HTTP", settings.http.enabled, settings.http.address, settings.http.port, settings.http.reuse_port),
        ("GRPC", settings.grpc.enabled, settings.grpc.address, settings.grpc.port, settings.grpc.reuse_port),
        (
            "Metrics",
            settings.metrics.enabled,
            settings.metrics.address or settings.http.address,
            settings.metrics.port,
            False,
        ),
        ("Console", settings.console.enabled, settings.console.address, settings.console.port, False),
        *(
            (name, front.enabled, front.address, front.port, False)
            for name, front in settings.plain_fronts().items()
        ),
    )
    for service, allowed, address, port, shared in wanted:
        if not allowed or port == 0:
            continue
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(shared))
            try:
                probe.bind((address, port))
            except OSError as error:
                taken = f"Unavailable - Socket '{address}:{port}' already in use"
                raise SettingsError(f"failed to start {service} service: {taken}") from error
