"""Takes out of a recorded request what its model's `tape.yaml` does not ask for."""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

from app.core.tape.spec import PARAMETER, TapeSpec, Treatment
from app.core.tensors import Parameters
from nereid_client.tape.rows import HASH, KEPT, OMITTED, SIZE, elements

HASH_BYTES: Final = 16
DEFAULTS: Final[Mapping[str, Treatment]] = {"BYTES": "size"}
"""What becomes of tensors that are not named, by datatype; others are kept."""


class Redaction:
    """The treatment of the tensors and parameters of a model.

    Args:
        spec: of the model.
        key: of the hashes, so that nobody without it can try out what a value was.

    Attributes:
        fields: what becomes of tensors and parameters that are named.
        hashes: whether it makes any of tensors, which takes a while for large ones.
    """

    def __init__(self, spec: TapeSpec, key: bytes) -> None:
        self.fields: Mapping[str, Treatment] = spec.fields
        self._others = spec.fields.get(f"{PARAMETER}*", "drop")
        self._key = key
        self.hashes = any(
            each == "hash" for name, each in spec.fields.items() if not name.startswith(PARAMETER)
        )

    def treatment(self, name: str, datatype: str) -> Treatment:
        """Return what becomes of a tensor."""
        return self.fields.get(name) or DEFAULTS.get(datatype, "keep")

    def treated(self, treatment: Treatment, datatype: str, data: Any) -> tuple[str, int, Any]:
        """Return state, size and recorded bytes of a tensor; what is kept is not copied.

        Args:
            treatment: what becomes of it.
            datatype: of the tensor.
            data: its bytes.
        """
        if treatment == "keep":
            return KEPT, len(data), data
        if treatment == "size":
            return SIZE, len(data), b""
        if treatment == "hash":
            return HASH, len(data), self._hashes(datatype, data)
        return OMITTED, 0, b""

    def parameters(self, given: Parameters) -> Parameters:
        """Return the parameters that are recorded, hashes as texts."""
        found: Parameters = {}
        for name, value in given.items():
            treatment = self.fields.get(PARAMETER + name, self._others)
            if treatment == "keep":
                found[name] = value
            elif treatment == "hash":
                found[name] = self._hash(repr(value).encode()).hex()
        return found

    def leaves_out(self, given: Parameters) -> bool:
        """Return whether a request cannot be sent again as it was for want of a parameter."""
        fields, others = self.fields, self._others
        return any(fields.get(PARAMETER + name, others) != "keep" for name in given)

    def _hashes(self, datatype: str, data: Any) -> bytes:
        """Return the hash of each element of BYTES, or that of all numbers."""
        if datatype == "BYTES":
            try:
                return b"".join(map(self._hash, elements(data)))
            except ValueError:  # the request was refused for it: its lengths are wrong
                pass
        return self._hash(data)

    def _hash(self, value: Any) -> bytes:
        return blake2b(value, digest_size=HASH_BYTES, key=self._key).digest()
