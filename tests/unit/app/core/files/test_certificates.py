"""Which files TLS starts with."""

from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key
from cryptography.x509 import load_pem_x509_certificate

from app.core.files.certificates import certificates
from tests.certificates import Authority, Pair


def chosen(
    cert: Path | str = "", key: Path | str = "", root: Path | str = "", use: bool = True, mutual: bool = False
) -> Any:
    return certificates("grpc", use, mutual, (str(cert), str(key), str(root)))


def refusal(**files: Any) -> Any:
    with pytest.raises(ValueError) as refused:
        chosen(**files)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_without_tls_no_file_is_read() -> None:
    assert chosen("no", "no", use=False) is None


def test_when_a_certificate_expires(pair: Pair) -> None:
    written = load_pem_x509_certificate(pair.cert.read_bytes())
    assert chosen(*pair).expires_at() == written.not_valid_after_utc.timestamp()


def test_root_certificate_is_used_for_mutual_tls_only(pair: Pair, authority: Authority) -> None:
    assert chosen(*pair, root=authority.root).root == ""
    assert chosen(*pair, root=authority.root, use=False, mutual=True).root == str(authority.root)


@pytest.mark.parametrize(
    ("given", "mutual", "text"),
    [
        ((), False, "--grpc-use-ssl requires --grpc-server-cert and --grpc-server-key"),
        (("cert",), False, "--grpc-use-ssl requires --grpc-server-key"),
        (("key",), False, "--grpc-use-ssl requires --grpc-server-cert"),
        (("cert", "key"), True, "--grpc-use-ssl-mutual requires --grpc-root-cert"),
    ],
)
def test_missing_file_flag_is_refused(pair: Pair, given: Any, mutual: bool, text: str) -> None:
    assert refusal(**{name: getattr(pair, name) for name in given}, mutual=mutual) == text


def test_unreadable_file_is_named(pair: Pair, tmp_path: Path) -> None:
    assert refusal(cert=pair.cert, key="no.key") == (
        "--grpc-server-key: cannot read 'no.key': No such file or directory"
    )
    assert refusal(cert=tmp_path, key=pair.key).endswith(": Is a directory")


def test_key_must_match_the_certificate(authority: Authority, pair: Pair) -> None:
    other = authority.issue("other")
    assert refusal(cert=pair.cert, key=other.key) == (
        f"--grpc-use-ssl: '{pair.cert}' and '{other.key}' are not a certificate and its key: "
        "KEY_VALUES_MISMATCH"
    )


def test_files_must_be_pem(pair: Pair, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("no certificate")
    assert f"'{text}' and '{pair.key}' are not a certificate and its key" in refusal(cert=text, key=pair.key)
    assert f"'{text}' is not a certificate" in refusal(cert=pair.cert, key=pair.key, root=text, mutual=True)


def test_encrypted_key_is_refused_without_a_prompt(pair: Pair, tmp_path: Path) -> None:
    key = load_pem_private_key(pair.key.read_bytes(), None)
    encrypted = tmp_path / "encrypted.key"
    encrypted.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, BestAvailableEncryption(b"x")
        )
    )
    assert refusal(cert=pair.cert, key=encrypted) == (
        "--grpc-use-ssl: the key is encrypted, which is not supported"
    )
