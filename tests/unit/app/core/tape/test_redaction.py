"""What is taken out of recorded requests."""

from typing import Any

from app.core.datatypes import pack_bytes
from app.core.tape.redaction import Redaction
from app.core.tape.spec import TapeSpec, Treatment
from app.core.tensors import Parameters, Tensor

TEXT = Tensor("T", "BYTES", (2,), pack_bytes([b"a", b"b"]))
NUMBERS = Tensor("N", "FP32", (2,), b"12345678")


def redaction(key: bytes = b"k", /, **fields: Treatment) -> Redaction:
    return Redaction(TapeSpec(fields=fields), key)


def treated(redact: Redaction, tensor: Tensor) -> tuple[str, int, Any]:
    treatment = redact.treatment(tensor.name, tensor.datatype)
    return redact.treated(treatment, tensor.datatype, tensor.data)


def test_texts_are_kept_by_size_and_numbers_whole_by_default() -> None:
    assert treated(redaction(), TEXT) == ("size", 10, b"")
    state, nbytes, data = treated(redaction(), NUMBERS)
    assert (state, nbytes) == ("kept", 8)
    assert data is NUMBERS.data


def test_a_tensor_that_is_named_is_kept_or_dropped() -> None:
    assert treated(redaction(T="keep"), TEXT) == ("kept", 10, TEXT.data)
    assert treated(redaction(N="drop"), NUMBERS) == ("omitted", 0, b"")


def test_hashes_are_of_elements_and_tell_equal_values_alone() -> None:
    redact, swapped = redaction(T="hash"), Tensor("T", "BYTES", (2,), pack_bytes([b"b", b"a"]))
    state, nbytes, data = treated(redact, TEXT)
    assert (state, nbytes, len(data), redact.hashes, redaction().hashes) == ("hash", 10, 32, True, False)
    assert treated(redact, swapped)[2] == data[16:] + data[:16]
    assert treated(redaction(b"other", T="hash"), TEXT)[2] != data
    assert len(treated(redaction(N="hash"), NUMBERS)[2]) == 16


def test_a_text_whose_lengths_are_wrong_is_hashed_as_it_is() -> None:
    broken = Tensor("T", "BYTES", (2,), b"\xff\xff\xff\xffa")
    assert len(treated(redaction(T="hash"), broken)[2]) == 16


def with_parameters(**fields: Treatment) -> Redaction:
    named = {f"parameters.{name}": treatment for name, treatment in fields.items()}
    return Redaction(TapeSpec(fields=named), b"k")


def test_parameters_are_left_out_until_they_are_named() -> None:
    given: Parameters = {"user": "u", "top_k": 3}
    assert redaction().parameters(given) == {}
    assert redaction().leaves_out(given)
    named = with_parameters(top_k="keep", user="hash")
    assert named.parameters(given)["top_k"] == 3
    assert len(str(named.parameters(given)["user"])) == 32
    assert named.leaves_out(given) and not named.leaves_out({"top_k": 1})
    every: dict[str, Treatment] = {"*": "keep"}
    assert with_parameters(**every).parameters(given) == given
    assert with_parameters(**every, user="drop").parameters(given) == {"top_k": 3}
