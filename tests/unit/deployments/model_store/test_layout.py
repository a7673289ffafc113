"""Models and versions found in a repository, and links and names that are refused."""

import os
import re
from pathlib import Path

import pytest

from app.core.errors import ErrorCode, InferError
from deployments.model_store.layout import check_model_name, find, scan, system_directories
from deployments.model_store.model_files import read_config
from tests.unit.deployments.model_store.repository_files import add, entry_of, refusal


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


def test_ignored_directories_are_reported(repository: Path) -> None:
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


def test_model_in_two_repositories_is_served_from_neither(tmp_path: Path) -> None:
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


def test_model_in_two_namespaces_is_two_models(tmp_path: Path) -> None:
    paths = {tmp_path / name: f"/{name}" for name in ("one", "two")}
    for path in paths:
        add(path, "both", {"1/model.py": ""})
    found = scan(paths)
    assert {key: entry.directory for key, entry in found.items()} == {
        "/one::both": tmp_path / "one" / "both",
        "/two::both": tmp_path / "two" / "both",
    }
    assert find(paths, "both") == list(found.values())


def test_missing_repository_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InferError) as caught:
        scan({tmp_path / "no": ""})
    assert caught.value.code is ErrorCode.INTERNAL
    assert caught.value.message == f"failed to open directory {tmp_path}/no: No such file or directory"


TRAVERSAL = "', model name must not contain path traversal characters"
UNSAFE = (
    "', model name must not contain quotes, control or shell characters. "
    "Invalid stub name: contains invalid characters"
)
EMPTY = "Model name cannot be empty. Please enter a valid name to deploy."


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", EMPTY),
        (" ", EMPTY),
        (" \t\n\v\f\r ", EMPTY),
        (" ..", "invalid model name ' .." + TRAVERSAL),
        (".. ", "invalid model name '.. " + TRAVERSAL),
        ("model/", "invalid model name 'model/" + TRAVERSAL),
        ("../x", "invalid model name '../x" + TRAVERSAL),
        ("/etc", "invalid model name '/etc" + TRAVERSAL),
        ("a\\b", "invalid model name 'a\\\\b" + UNSAFE),
        ("..", "invalid model name '.." + TRAVERSAL),
        (".", "invalid model name '." + TRAVERSAL),
        ("a\0b", "invalid model name 'a\\x00b" + TRAVERSAL),
        ("a\r\nE1119 x", "invalid model name 'a\\r\\nE1119 x" + UNSAFE),
        ("a\x9b2Jb", "invalid model name 'a\\x9b2Jb" + UNSAFE),
        ("a\u2028b", "invalid model name 'a\\u2028b" + UNSAFE),
        ("$(reboot)", "invalid model name '$(reboot)" + UNSAFE),
        ("a;b", "invalid model name 'a;b" + UNSAFE),
        ("`x`", "invalid model name '`x`" + UNSAFE),
        ("a|b", "invalid model name 'a|b" + UNSAFE),
        ("a\udcff", "invalid model name 'a\\udcff', model name must be UTF-8"),
        ("\ud83d", "invalid model name '\\ud83d', model name must be UTF-8"),
        ("é" * 128, "', model name must not exceed 255 bytes"),
        ("x" * 1_000_000, "', model name must not exceed 255 bytes"),
    ],
)
def test_bad_names_are_refused(repository: Path, name: str, text: str) -> None:
    with pytest.raises(InferError) as caught:
        check_model_name(name)
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert caught.value.message.endswith(text)
    assert len(caught.value.message) < 2000
    if text is EMPTY or text.endswith(TRAVERSAL):
        with pytest.raises(InferError, match=re.escape(text)):
            find({repository: ""}, name)
    else:  # As in Triton, there is no such model.
        assert find({repository: ""}, name) == []


def test_unsafe_name_of_a_directory_is_a_reason_not_to_serve_it(repository: Path) -> None:
    add(repository, "model!test", {"1/model.py": ""})
    [entry] = find({repository: ""}, "model!test")
    assert entry.reason.endswith(UNSAFE) and not entry.versions


def test_directory_whose_name_is_not_utf8_is_listed_by_a_name_that_is(repository: Path) -> None:
    os.makedirs(os.fsencode(repository) + b"/caf\xe9/1")
    [entry] = scan({repository: ""}).values()
    assert entry.name == "caf\\udce9" and not entry.versions
    assert entry.reason == "invalid model name 'caf\\udce9', model name must be UTF-8"
    assert find({repository: ""}, entry.name) == [entry]


@pytest.mark.parametrize(
    "name", ["m", "resnet-50.v2", "a b", "..m", "模型", "x" * 255, "a%2e%2eb", "A_1+2@3"]
)
def test_good_names_are_accepted(name: str) -> None:
    check_model_name(name)


def test_directories_of_systems_are_no_models(repository: Path) -> None:
    for name in ("lost+found", "@eaDir", ".snapshot", ".ipynb_checkpoints", "__pycache__"):
        add(repository, name, {"1/model.py": ""})
    add(repository, "m", {"1/model.py": ""})
    assert list(scan({repository: ""})) == ["m"]
    assert find({repository: ""}, "lost+found") == []
    found = [path.name for path in system_directories([repository])]
    assert found == ["@eaDir", "__pycache__", "lost+found"]


def test_links_of_an_operator_lead_anywhere(tmp_path: Path, repository: Path) -> None:
    outside = add(tmp_path / "elsewhere", "shared", {"1/model.py": "", "config.pbtxt": 'backend: "python"'})
    (repository / "absolute").symlink_to(outside)
    (repository / "relative").symlink_to("../elsewhere/shared")
    add(repository, "m", {"2/model.py": ""})
    (repository / "m" / "1").symlink_to(outside / "1")
    (repository / "m" / "5").symlink_to("2")
    (repository / "m" / "config.pbtxt").symlink_to(outside / "config.pbtxt")
    found = scan({repository: ""})
    assert {name: (entry.versions, entry.reason) for name, entry in found.items()} == {
        "absolute": ((1,), ""),
        "relative": ((1,), ""),
        "m": ((1, 2, 5), ""),
    }
    assert {read_config(entry).backend for entry in found.values()} == {"python"}


def test_a_linked_repository_is_read(tmp_path: Path, repository: Path) -> None:
    add(repository, "m", {"1/model.py": ""})
    (tmp_path / "link").symlink_to(repository)
    assert read_config(scan({tmp_path / "link": ""})["m"]).backend == "python"


def test_link_loops_are_ignored(repository: Path) -> None:
    (repository / "m").symlink_to(repository / "m")
    add(repository, "n", {"1/model.py": ""})
    (repository / "n" / "config.pbtxt").symlink_to("config.pbtxt")
    assert list(scan({repository: ""})) == ["n"]
    assert find({repository: ""}, "m") == []
    assert refusal(entry_of(repository, "n")).message.endswith("Too many levels of symbolic links")
