"""Files of load requests: valid names, location and lifetime."""

import re
from pathlib import Path

import pytest

from app.core.errors import ErrorCode, InferError
from deployments.model_store.overrides import Overrides, checked_files
from deployments.replica import materialize as materialize_module
from deployments.replica.materialize import materialize_model
from deployments.spec import ModelSpec

FILES = {"1/model.py": b"code", "1/weights/w": b"123"}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(materialize_module, "private_root", lambda: tmp_path)
    tmp_path.chmod(0o700)
    return tmp_path / "overrides"


@pytest.fixture
def overrides(root: Path) -> Overrides:
    return Overrides(root, 1000)


def files_below(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.glob("*/**/*") if path.is_file())


@pytest.mark.parametrize(
    "name",
    ["..", "../x", "1/../../x", "/../x", "/..", "/", ".", "", "1/..", "a\\b", "a\0b", "//../x"],
)
def test_path_outside_the_model_is_refused(name: str) -> None:
    with pytest.raises(InferError, match="must stay within model directory") as caught:
        checked_files({name: b""})
    assert caught.value.code is ErrorCode.INVALID_ARG


@pytest.mark.parametrize("name", ["/1/model.py", "//1/model.py", "1//model.py"])
def test_leading_slash_is_stripped(name: str) -> None:
    assert checked_files({name: b""}) == {"1/model.py": b""}


def test_error_text_is_tritons() -> None:
    with pytest.raises(InferError) as caught:
        checked_files({"1/../..": b""})
    assert caught.value.message == (
        "Invalid file parameter 'file:1/../..' with normalized path '..' must stay within model directory."
    )


@pytest.mark.parametrize("name", ["A" * 256, f"1/{'é' * 128}/model.py", "\ud800" * 86])
def test_too_long_file_name_is_refused(name: str) -> None:
    with pytest.raises(InferError, match="Invalid file path: a component") as caught:
        checked_files({name: b""})
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert checked_files({f"1/{'A' * 255}": b""})


def test_file_used_as_a_directory_is_refused() -> None:
    with pytest.raises(InferError, match="directory has been created as a file"):
        checked_files({"1": b"", "1/model.py": b""})


@pytest.mark.parametrize("name", ["1/libtriton_x.so", "libtriton_x.so", "/batchstrategy.so"])
def test_native_code_is_refused(name: str) -> None:
    with pytest.raises(InferError, match="a library of native code is loaded from the model repository only"):
        checked_files({name: b""})
    assert checked_files({"1/model.so": b""})  # what another backend's model may be


@pytest.mark.parametrize("model", ["..", "a/b", ""])
def test_bad_model_name_is_refused(overrides: Overrides, root: Path, model: str) -> None:
    with pytest.raises(InferError):
        overrides.open(model, FILES)
    assert not root.exists()


def test_files_are_kept_while_the_model_is_served(overrides: Overrides, root: Path) -> None:
    bundle = overrides.open("m", FILES)
    overrides.retain([])
    assert files_below(bundle.directory) == ["m/1/model.py", "m/1/weights/w"], "still loading"
    overrides.close(bundle)
    overrides.retain([bundle.digest])
    assert (bundle.directory / "m/1/model.py").read_bytes() == b"code"
    overrides.retain([])
    assert files_below(root) == []


def test_the_same_files_are_the_same_bundle(overrides: Overrides) -> None:
    one = overrides.open("m", FILES)
    assert overrides.open("m", dict(reversed(FILES.items()))) == one
    assert overrides.open("m", {**FILES, "1/model.py": b"edoc"}) != one
    assert overrides.open("n", FILES) != one


def test_the_total_is_bounded(overrides: Overrides) -> None:
    bundle = overrides.open("m", {"1/w": bytes(900)})
    with pytest.raises(InferError, match=re.escape("at most 1000 bytes of them are kept")) as caught:
        overrides.open("n", {"1/w": bytes(200)})
    assert caught.value.code is ErrorCode.UNAVAILABLE
    overrides.close(bundle)
    overrides.retain([])
    overrides.open("n", {"1/w": bytes(200)})


def test_files_used_by_a_replica_outlive_the_manager(overrides: Overrides, root: Path) -> None:
    bundle = overrides.open("m", FILES)
    spec = ModelSpec("m", 1, str(bundle.directory / "m"), b"", "m:1", "", b"", bundle=bundle.digest)
    local = materialize_model(spec)
    overrides.close(bundle)
    overrides.retain([])
    assert files_below(bundle.directory), "the replica leases them"
    successor = Overrides(root, 1000)
    successor.adopt(bundle.digest)
    assert successor.listing(bundle.digest) == [("m/1/model.py", 4), ("m/1/weights/w", 3)]
    assert successor.read(bundle.digest, "m/1/model.py", 2) == b"de"
    successor.retain([])
    local.release()
    assert files_below(root) == []
