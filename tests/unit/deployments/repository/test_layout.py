"""Reading repositories from disk: models, versions, configurations, labels; and nothing outside them."""

import os
from pathlib import Path

import pytest

from app.core.errors import ErrorCode, InferError
from deployments.repository.fingerprint import fingerprint, version_fingerprint
from deployments.repository.layout import (
    ModelEntry,
    check_model_name,
    check_paths,
    find,
    read_config,
    read_labels,
    scan,
    version_listing,
)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    path = tmp_path / "models"
    path.mkdir()
    return path


def add(repository: Path, name: str, files: dict[str, str]) -> Path:
    for file, text in files.items():
        path = repository / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return repository / name


def entry_of(repository: Path, name: str = "m") -> ModelEntry:
    return scan({repository: ""})[name]


def refusal(entry: ModelEntry, config_name: str = "", auto_complete: bool = True) -> InferError:
    with pytest.raises(InferError) as caught:
        read_config(entry, config_name, auto_complete)
    return caught.value


def test_scan_lists_models_and_versions(repository: Path) -> None:
    add(repository, "b", {"1/model.onnx": "", "10/model.onnx": "", "2/model.onnx": "", "0/model.onnx": ""})
    add(repository, "a", {"config.pbtxt": ""})
    add(repository, ".git", {"1/x": ""})
    add(
        repository,
        "b",
        {"warmup/x": "", "initial_state/x": "", "configs/x.pbtxt": "", ".cache/x": "", "3": ""},
    )
    (repository / "README.md").write_text("no model")
    found = scan({repository: ""})
    assert list(found) == ["a", "b"]
    assert found["b"].versions == (0, 1, 2, 10)
    assert (found["a"].versions, found["a"].reason, found["b"].warnings) == ((), "", ())


def test_directories_that_are_no_versions_are_named(repository: Path) -> None:
    long = "9" * 19
    add(
        repository,
        "m",
        {"01/x": "", "003/x": "", "abc/x": "", "-1/x": "", f"{long}/x": "", "٣/x": "", "7/x": ""},
    )
    entry = entry_of(repository)
    assert entry.versions == (7,)
    assert set(entry.warnings) == {
        "ignore version directory '01' which contains leading zeros in its directory name",
        "ignore version directory '003' which contains leading zeros in its directory name",
        "ignore version directory 'abc' which fails to convert to integral number",
        "ignore version directory '-1' which fails to convert to integral number",
        f"ignore version directory '{long}' which fails to convert to integral number",
        "ignore version directory '٣' which fails to convert to integral number",
    }


def test_a_model_in_two_repositories_is_served_from_neither(tmp_path: Path) -> None:
    for name in ("one", "two"):
        add(tmp_path / name, "both", {"1/model.py": ""})
    add(tmp_path / "two", "single", {"1/model.py": ""})
    paths = {tmp_path / "one": "", tmp_path / "two": ""}
    found = scan(paths)
    assert (found["both"].versions, found["both"].reason) == ((), "model appears in two or more repositories")
    assert (found["single"].versions, found["single"].reason) == ((1,), "")
    assert find(paths, "both") == [found["both"]]
    assert find(paths, "single") == [found["single"]]
    assert find(paths, "absent") == []
    (tmp_path / "one" / ".hidden").mkdir()
    assert find(paths, ".hidden") == []


def test_a_model_in_two_namespaces_is_two(tmp_path: Path) -> None:
    paths = {tmp_path / name: f"/{name}" for name in ("one", "two")}
    for path in paths:
        add(path, "both", {"1/model.py": ""})
    found = scan(paths)
    assert {key: entry.directory for key, entry in found.items()} == {
        "/one::both": tmp_path / "one" / "both",
        "/two::both": tmp_path / "two" / "both",
    }
    assert find(paths, "both") == list(found.values())


def test_a_repository_named_twice_is_one(repository: Path) -> None:
    add(repository, "m", {"1/model.py": ""})
    assert scan({repository: "", repository / ".." / "models": ""})["m"].reason == ""


def test_a_repository_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InferError) as caught:
        scan({tmp_path / "no": ""})
    assert caught.value.code is ErrorCode.INTERNAL
    assert caught.value.message == f"failed to open directory {tmp_path}/no: No such file or directory"


TRAVERSAL = "', model name must not contain path traversal characters"
UNSAFE = "', model name must not contain quotes, control or shell characters"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "Model name cannot be empty. Please enter a valid name to deploy."),
        ("../x", "invalid model name '../x" + TRAVERSAL),
        ("/etc", "invalid model name '/etc" + TRAVERSAL),
        ("a\\b", "invalid model name 'a\\\\b" + TRAVERSAL),
        ("..", "invalid model name '.." + TRAVERSAL),
        (".", "invalid model name '." + TRAVERSAL),
        ("a\0b", "invalid model name 'a\\x00b" + TRAVERSAL),
        ("a\r\nE1119 x", "invalid model name 'a\\r\\nE1119 x" + UNSAFE),
        ("$(reboot)", "invalid model name '$(reboot)" + UNSAFE),
        ("a;b", "invalid model name 'a;b" + UNSAFE),
        ("`x`", "invalid model name '`x`" + UNSAFE),
        ("a|b", "invalid model name 'a|b" + UNSAFE),
        ("é" * 128, "', model name must not exceed 255 bytes"),
        ("x" * 1_000_000, "', model name must not exceed 255 bytes"),
    ],
)
def test_names_no_model_can_have(repository: Path, name: str, text: str) -> None:
    for check in (check_model_name, lambda given: find({repository: ""}, given)):
        with pytest.raises(InferError) as caught:
            check(name)
        assert caught.value.code is ErrorCode.INVALID_ARG
        assert caught.value.message.endswith(text)
        assert len(caught.value.message) < 2000


@pytest.mark.parametrize(
    "name", ["m", "resnet-50.v2", "a b", "..m", "模型", "x" * 255, "a%2e%2eb", "A_1+2@3"]
)
def test_names_models_have(name: str) -> None:
    check_model_name(name)


def test_links_that_leave_the_repository(tmp_path: Path, repository: Path) -> None:
    outside = add(tmp_path / "elsewhere", "secret", {"1/model.py": "", "config.pbtxt": 'backend: "python"'})
    (repository / "linked").symlink_to(outside)
    add(repository, "m", {"2/model.py": ""})
    (repository / "m" / "1").symlink_to(outside / "1")
    (repository / "m" / "5").symlink_to(repository / "m" / "2")
    found = scan({repository: ""})
    assert found["linked"].versions == ()
    assert found["linked"].reason == f"model directory '{repository}/linked' is outside model repository"
    assert found["m"].versions == (2, 5)
    assert found["m"].warnings == ("ignore version directory '1' which leads out of the model repository",)


def test_a_linked_repository_is_read(tmp_path: Path, repository: Path) -> None:
    add(repository, "m", {"1/model.py": ""})
    (tmp_path / "link").symlink_to(repository)
    assert read_config(scan({tmp_path / "link": ""})["m"]).backend == "python"


def test_links_in_a_ring(repository: Path) -> None:
    (repository / "m").symlink_to(repository / "m")
    add(repository, "n", {"1/model.py": ""})
    (repository / "n" / "config.pbtxt").symlink_to("config.pbtxt")
    assert list(scan({repository: ""})) == ["n"]
    assert find({repository: ""}, "m") == []
    assert refusal(entry_of(repository, "n")).message.endswith("is outside model directory")


def test_a_configuration_is_read_and_completed(repository: Path) -> None:
    add(repository, "m", {"1/model.onnx": "", "config.pbtxt": "max_batch_size: 4"})
    config = read_config(entry_of(repository))
    assert (config.name, config.max_batch_size, config.backend) == ("m", 4, "onnxruntime")
    assert (config.platform, config.default_model_filename) == ("onnxruntime_onnx", "model.onnx")


def test_a_missing_configuration_is_inferred_unless_forbidden(repository: Path) -> None:
    add(repository, "m", {"10/model.py": "", "2/model.onnx": ""})
    entry = entry_of(repository)
    # "10" comes before "2" in the alphabet.
    assert version_listing(entry) == {"model.py"}
    assert read_config(entry).backend == "python"
    error = refusal(entry, auto_complete=False)
    assert error.code is ErrorCode.INTERNAL
    assert error.message == (
        f"failed to open text file for read {repository}/m/config.pbtxt: No such file or directory"
    )


def test_named_configurations(repository: Path) -> None:
    files = {"config.pbtxt": "max_batch_size: 1", "configs/big.pbtxt": "max_batch_size: 64", "1/model.py": ""}
    add(repository, "m", files)
    entry = entry_of(repository)
    assert read_config(entry, "big").max_batch_size == 64
    assert read_config(entry, "absent").max_batch_size == 1
    for name in ("../big", "..", "a/b", "/etc/x", "a\0"):
        assert "invalid model config name" in refusal(entry, name).message


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        (
            'name: "other"',
            ErrorCode.INVALID_ARG,
            "unexpected directory name 'm' for model 'other', directory name must equal model name",
        ),
        (
            "max_batch: 3",
            ErrorCode.INTERNAL,
            "failed to read text proto from {path}/config.pbtxt: line 1, column 1: Message type "
            '"inference.ModelConfig" has no field named "max_batch". Did you mean \'max_batch_size\'?',
        ),
    ],
)
def test_bad_configurations(repository: Path, text: str, code: ErrorCode, message: str) -> None:
    path = add(repository, "m", {"config.pbtxt": text, "1/model.py": ""})
    error = refusal(entry_of(repository))
    assert (error.code, error.message) == (code, message.replace("{path}", str(path)))


def test_files_that_are_no_text(repository: Path) -> None:
    path = add(repository, "m", {"1/model.py": ""}) / "config.pbtxt"
    prefix = f"failed to open text file for read {path}: "
    path.write_bytes(b'name: "m"\n\xff')
    assert refusal(entry_of(repository)).message == prefix + "line 2 is not UTF-8; save the file as UTF-8"
    path.write_bytes(b"#" * (5 << 20))
    assert refusal(entry_of(repository)).message == prefix + "larger than 4194304 bytes"
    path.unlink()
    os.mkfifo(path)
    assert refusal(entry_of(repository)).message == prefix + "not a regular file"
    path.unlink()
    path.mkdir()
    assert refusal(entry_of(repository)).message.startswith(prefix)


def test_a_configuration_linked_from_outside(tmp_path: Path, repository: Path) -> None:
    (tmp_path / "outside.pbtxt").write_text("max_batch_size: 3")
    path = add(repository, "m", {"1/model.py": "", "..data/config.pbtxt": "max_batch_size: 5"})
    (path / "config.pbtxt").symlink_to(tmp_path / "outside.pbtxt")
    error = refusal(entry_of(repository))
    assert error.message == f"file '{path}/config.pbtxt' of model 'm' is outside model directory"
    # Kubernetes mounts a ConfigMap as links within the directory.
    (path / "config.pbtxt").unlink()
    (path / "config.pbtxt").symlink_to("..data/config.pbtxt")
    assert read_config(entry_of(repository)).max_batch_size == 5


HOSTILE_PATHS = ["../x", "../../etc/passwd", "/etc/passwd", "a/../../../x", "..\\x", "a\\000b"]


@pytest.mark.parametrize("path", HOSTILE_PATHS)
@pytest.mark.parametrize(
    ("field", "template"),
    [
        ("default_model_filename", 'default_model_filename: "{path}"'),
        ("cc_model_filenames", 'cc_model_filenames {{ key: "7.5" value: "{path}" }}'),
        (
            "input_data_file",
            'model_warmup {{ name: "w" inputs {{ key: "A" value {{ input_data_file: "{path}" }} }} }}',
        ),
        ("data_file", 'sequence_batching {{ state {{ initial_state {{ data_file: "{path}" }} }} }}'),
    ],
)
def test_file_names_that_lead_out(repository: Path, field: str, template: str, path: str) -> None:
    text = 'backend: "python" ' + template.format(path=path.replace("..\\", "..\\\\"))
    add(repository, "m", {"config.pbtxt": text, "1/model.py": ""})
    error = refusal(entry_of(repository))
    assert error.code is ErrorCode.INVALID_ARG
    assert error.message.startswith(f"'{field}' of model 'm' is ")
    assert "leads out of the" in error.message


def test_model_files_may_be_links_within_the_repository(tmp_path: Path, repository: Path) -> None:
    path = add(repository, "m", {"1/x": "", "config.pbtxt": 'backend: "onnxruntime"'})
    (repository / "blobs").mkdir()
    (repository / "blobs" / "big").write_text("")
    (path / "1" / "model.onnx").symlink_to(repository / "blobs" / "big")
    read_config(entry_of(repository))
    (path / "1" / "model.onnx").unlink()
    (tmp_path / "outside.onnx").write_text("")
    (path / "1" / "model.onnx").symlink_to(tmp_path / "outside.onnx")
    assert "'default_model_filename' of model 'm'" in refusal(entry_of(repository)).message


def labelled(repository: Path, label_file: str, files: dict[str, str]) -> ModelEntry:
    output = f'output {{ name: "O" data_type: TYPE_FP32 dims: 3 label_filename: "{label_file}" }}'
    add(repository, "m", {"config.pbtxt": f'backend: "python" {output}', "1/model.py": "", **files})
    return entry_of(repository)


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("cat\ndog\n", ("cat", "dog")),
        ("cat\n\ndog", ("cat", "", "dog")),
        ("", ()),
        ("\n", ("",)),
        ("naïve café\x0bx\n", ("naïve café\x0bx",)),
    ],
)
def test_labels(repository: Path, text: str, labels: tuple[str, ...]) -> None:
    entry = labelled(repository, "names/labels.txt", {"names/labels.txt": text})
    assert read_labels(entry, read_config(entry)) == {"O": labels}


@pytest.mark.parametrize("path", [*HOSTILE_PATHS[:4], "out"])
def test_labels_outside_the_model(tmp_path: Path, repository: Path, path: str) -> None:
    (tmp_path / "secret").write_text("x")
    entry = labelled(repository, path, {})
    (entry.directory / "out").symlink_to(tmp_path / "secret")
    error = refusal(entry)
    assert error.code is ErrorCode.UNSUPPORTED
    assert error.message == (
        f"label file path '{entry.directory / path}' for output 'O' in model 'm' is outside model directory"
    )


def test_labels_that_are_not_there(repository: Path) -> None:
    entry = labelled(repository, "labels.txt", {})
    with pytest.raises(InferError) as caught:
        read_labels(entry, read_config(entry))
    assert caught.value.message == (
        f"failed to open text file for read {entry.directory}/labels.txt: No such file or directory"
    )


def test_check_paths_without_versions(repository: Path) -> None:
    entry = entry_of(add(repository, "m", {"config.pbtxt": ""}).parent)
    check_paths(entry, read_config(add_python(entry)))


def add_python(entry: ModelEntry) -> ModelEntry:
    (entry.directory / "config.pbtxt").write_text('backend: "python"')
    return entry


def touch(path: Path) -> None:
    later = path.stat().st_mtime_ns + 1_000_000
    os.utime(path, ns=(later, later))


def test_fingerprints_tell_what_changed(repository: Path) -> None:
    path = add(repository, "m", {"config.pbtxt": "", "1/model.py": "", "2/model.py": "", "labels.txt": "a"})
    (path / "3").symlink_to(path / "2")

    def prints() -> list[str]:
        entry = entry_of(repository)
        versions = [version_fingerprint(entry, version) for version in (1, 2, 3)]
        return [fingerprint(entry), *versions]

    def changed(before: list[str]) -> list[bool]:
        return [old != new for old, new in zip(before, prints(), strict=True)]

    before = prints()
    assert changed(before) == [False] * 4
    touch(path / "config.pbtxt")
    assert changed(before) == [True, False, False, False]
    before = prints()
    touch(path / "1" / "model.py")
    assert changed(before) == [True, True, False, False]
    before = prints()
    touch(path / "2" / "model.py")
    assert changed(before) == [True, False, True, True]
    before = prints()
    (path / "labels.txt").write_text("ab")
    assert changed(before) == [True, True, True, True]
    before = prints()
    add(repository, "m", {"configs/x.pbtxt": ""})
    assert changed(before) == [True, False, False, False]
    before = prints()
    (path / "1" / "model.py").unlink()
    assert changed(before) == [True, True, False, False]
