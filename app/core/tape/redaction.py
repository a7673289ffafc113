"""Takes out of a recorded request what its model's `tape.yaml` does not ask for."""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

from app.core.tape.spec import PARAMETER, TapeSpec, Treatment
from app.core.tensors import Parameters, Tensor
from nereid_client.tape.rows import HASH, KEPT, OMITTED, SIZE, TapeTensor, elements

HASH_BYTES: Final = 16


class Redaction:
    """What becomes of the tensors and parameters of a model.

    Args:
        spec: of the model.
        key: of the hashes, so that nobody without it can try out what a value was.
    """

    def __init__(self, spec: TapeSpec, key: bytes) -> None:
        self._fields: Mapping[str, Treatment] = spec.fields
        self._others = spec.fields.get(f"{PARAMETER}*", "drop")
        self._key = key

    def treatment(self, name: str, datatype: str) -> Treatment:
        """Return what becomes of a tensor."""
        return self._fields.get(name) or ("size" if datatype == "BYTES" else "keep")

    def tensor(self, tensor: Tensor) -> TapeTensor:
        """Return what is recorded of a tensor; its data is not copied."""
        treatment = self.treatment(tensor.name, tensor.datatype)
        data: Any = tensor.data
        described = tensor.name, tensor.datatype, tensor.shape
        if treatment == "keep":
            return TapeTensor(*described, data, len(data), KEPT)
        if treatment == "hash":
            return TapeTensor(*described, self._hashes(tensor), len(data), HASH)
        if treatment == "size":
            return TapeTensor(*described, b"", len(data), SIZE)
        return TapeTensor(*described, b"", 0, OMITTED)

    def parameters(self, given: Parameters) -> Parameters:
        """Return the parameters that are recorded, hashes as texts."""
        found: Parameters = {}
        for name, value in given.items():
            treatment = self._fields.get(PARAMETER + name, self._others)
            if treatment == "keep":
                found[name] = value
            elif treatment == "hash":
                found[name] = self._hash(repr(value).encode()).hex()
        return found

    def leaves_out(self, given: Parameters) -> bool:
        """Return whether a request cannot be sent again as it was for want of a parameter."""
        fields, others = self._fields, self._others
        return any(fields.get(PARAMETER + name, others) != "keep" for name in given)

    def _hashes(self, tensor: Tensor) -> bytes:
        """Return the hash of each element of BYTES, or that of all numbers."""
        if tensor.datatype == "BYTES":
            try:
                return b"".join(map(self._hash, elements(tensor.data)))
            except ValueError:  # the request was refused for it: its lengths are wrong
                pass
        return self._hash(tensor.data)

    def _hash(self, value: Any) -> bytes:
        return blake2b(value, digest_size=HASH_BYTES, key=self._key).digest()
