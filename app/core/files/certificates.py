"""TLS certificates of an endpoint, as PEM files."""

import ssl
from pathlib import Path
from typing import NamedTuple


class Certificates(NamedTuple):
    """Paths of PEM files, read again by each process that listens; the key itself never leaves its file.

    `root` is the certificate that those of clients must be signed by; "" requires none of clients.
    """

    cert: str
    key: str
    root: str = ""

    def expires_at(self) -> float:
        """Return when the certificate expires, in seconds since the epoch."""
        decode = ssl._ssl._test_decode_cert  # type: ignore[attr-defined]  # the one decoder that Python has
        return ssl.cert_time_to_seconds(decode(self.cert)["notAfter"])

    def context(self, protocol: str = "http/1.1") -> ssl.SSLContext:
        """Load the files: TLS 1.2 or later, for one application protocol (ALPN).

        Raises:
            ValueError: they are no certificate and its key, or the key is encrypted.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # A client of gRPC hears nothing of a server that does not offer h2: at the wrong port it is told so.
        context.set_alpn_protocols([protocol, "h2"])
        try:
            context.load_cert_chain(self.cert, self.key, password=_no_password)
        except ssl.SSLError as error:
            raise ValueError(
                f"'{self.cert}' and '{self.key}' are not a certificate and its key: {error.reason or error}"
            ) from None
        if self.root:
            try:
                context.load_verify_locations(self.root)
            except ssl.SSLError as error:
                raise ValueError(f"'{self.root}' is not a certificate: {error.reason or error}") from None
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def _no_password() -> bytes:
    # Without a callback OpenSSL would prompt on the console.
    raise ValueError("the key is encrypted, which is not supported")


def certificates(front: str, use: bool, mutual: bool, files: tuple[str, str, str]) -> Certificates | None:
    """Choose and check the files of a front.

    Args:
        front: "http" or "grpc", for the names of the flags in errors.
        use: whether to speak TLS.
        mutual: whether to require certificates of clients, which implies `use`.
        files: paths of certificate, key and root certificate; "" for none.

    Returns:
        None when the front does not speak TLS.

    Raises:
        ValueError: a file is not named, cannot be read, or does not hold what it should.
    """
    if not (use or mutual):
        return None
    names = ("server-cert", "server-key", "root-cert")[: 3 if mutual else 2]
    asking = f"--{front}-use-ssl{'-mutual' if mutual else ''}"
    missing = [f"--{front}-{name}" for name, path in zip(names, files, strict=False) if not path]
    if missing:
        raise ValueError(f"{asking} requires {' and '.join(missing)}")
    for name, path in zip(names, files, strict=False):
        try:
            Path(path).read_bytes()
        except OSError as error:
            raise ValueError(f"--{front}-{name}: cannot read '{path}': {error.strerror}") from None
    chosen = Certificates(*files[: len(names)])
    try:
        chosen.context()
    except ValueError as error:
        raise ValueError(f"{asking}: {error}") from None
    return chosen
