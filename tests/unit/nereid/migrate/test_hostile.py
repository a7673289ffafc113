"""Sources made by somebody who means harm: names, paths, links, types and sizes, over every old server."""

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest

from nereid.commands import migrate
from tests.unit.nereid.migrate.hostile import (
    GOOD,
    SOURCES,
    Capture,
    Source,
    kserve,
    mlserver,
    refused,
    seldon,
    seldon_model,
)
from tests.unit.nereid.migrate.sources import FLOAT, archive, saved_model

NAMES = [
    "../escaped", "../../escaped", "./../../escaped", "a/../../escaped", "a/b", "a/", "/", "/etc/cron.d/x",
    "{outside}/kept", "..", ".", "", " ", "...", ".hidden", ".kept.migrating", "../outside/.kept", "~",
    "~root", "-rf", "--to=/etc", "a b", "a\nb", "a\r\nE1119 x", "a\0b", "\x1b[2J", "a\x9b2Jb",
    "\u202egpj.exe", "\u2028", "a;reboot", "$(reboot)", "`reboot`", "a|b", "a\\b", "..\\..\\escaped", "C:\\x",
    "a:b", "a*", "a'b", 'a"b', "<b>", "x" * 201, "é" * 101, "\ud83d", "a\udcff",
]  # fmt: skip
"""Names that no model gets."""
ODD: list[Any] = [None, True, 3, -1.5, [], ["a"], {}, {"a": 1}, "x" * 1000, [[[[[["deep"]]]]]]]
"""Values of the wrong type in the place of a name."""


@pytest.mark.parametrize("make", SOURCES)
def test_a_good_name_is_written(make: Source, source: Path) -> None:
    arguments = make(source, GOOD.get(make, "good-1.0"))
    assert migrate.main([*arguments, "--to", str(source.parent / "to")]) == 0
    assert (source.parent / "to" / GOOD.get(make, "good-1.0") / "config.pbtxt").is_file()


@pytest.mark.parametrize("make", SOURCES)
@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_a_hostile_name_writes_and_removes_nothing(
    make: Source, name: str, source: Path, capsys: Capture
) -> None:
    refused(make(source, name.format(outside=source.parent / "outside")), source.parent, capsys)


@pytest.mark.parametrize("make", SOURCES)
@pytest.mark.parametrize("name", ODD, ids=range(len(ODD)))
def test_a_name_of_another_type_is_refused(make: Source, name: Any, source: Path, capsys: Capture) -> None:
    arguments = make(source, name)
    named = make is mlserver and name is None  # it has the name of its directory then
    text = make in (kserve, seldon, seldon_model) and name in (True, 3)  # YAML's 3 is a text here
    if named or text:
        assert migrate.main([*arguments, "--to", str(source.parent / "to")]) == 0
    else:
        refused(arguments, source.parent, capsys)


PATHS = [
    "../../../escaped", "/etc/escaped", "a/../../../../escaped", "..\\..\\escaped", "~/escaped", "C:/x",
    "a\nb", "a/" * 40 + "b", "x" * 256, "handler.py/x", "../model.py",
]  # fmt: skip


@pytest.mark.parametrize("path", PATHS, ids=range(len(PATHS)))
def test_paths_of_an_archive_stay_in_it(path: str, source: Path, capsys: Capture) -> None:
    made = archive(source / "a.mar", {path: "x"})
    refused(["torchserve", str(made)], source.parent, capsys)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_file_that_an_archive_has_twice_is_refused(source: Path, capsys: Capture) -> None:
    made = archive(source / "a.mar")
    with zipfile.ZipFile(made, "a") as packed:
        packed.writestr("./handler.py", "x")
    assert "two of its files would be" in refused(["torchserve", str(made)], source.parent, capsys)


@pytest.mark.parametrize("flag", [1, 8], ids=["encrypted", "damaged"])
def test_what_cannot_be_unpacked_leaves_nothing(flag: int, source: Path, capsys: Capture) -> None:
    made = archive(source / "a.mar", {"weights.bin": "x" * 1000})
    content = bytearray(made.read_bytes())
    if flag == 1:  # the last file says that it is encrypted
        for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
            content[content.rindex(mark) + offset] |= flag
    else:
        start = content.index(b"x" * 1000)
        content[start : start + 10] = b"y" * 10
    made.write_bytes(content)
    refused(["torchserve", str(made)], source.parent, capsys)


def test_a_directory_that_cannot_be_read_is_one_refusal(
    source: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """As lost+found of a volume."""
    saved_model(source / "half" / "1", serving_default={"x": (FLOAT, [-1, 2])})
    (source / "lost").mkdir()
    listed = Path.iterdir

    def iterdir(path: Path) -> Any:
        if path.name == "lost":
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    assert migrate.main(["tfserving", str(source), "--to", str(source.parent / "to")]) == 1
    out = capsys.readouterr().out
    assert (
        "half: 3 files" in out
        and f"lost: not written: {source}/lost cannot be read: Permission denied" in out
    )


@pytest.mark.parametrize(
    "file", ["model-settings.json", "a.mar", "models.config", "m.yaml", "bento.yaml", "service.json"]
)
def test_what_is_no_file_is_not_waited_for(file: str, source: Path, capsys: Capture) -> None:
    kinds = ["mlserver", "torchserve", "tfserving", "kserve", "bentoml", "eas"]
    files = ["model-settings.json", "a.mar", "models.config", "m.yaml", "bento.yaml", "service.json"]
    os.mkfifo(source / file)
    kind = dict(zip(files, kinds, strict=True))[file]
    for place in (source, source / file):
        refused([kind, str(place)], source.parent, capsys)


BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 10)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = "a: &a {x: 1}\n" + "".join(
    f"{name}: &{name}\n  <<: [{','.join([f'*{before}'] * 10)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
DOCUMENTS = [
    BOMB + "kind: InferenceService\nmetadata: *i\nspec: *i\n",
    BOMB + "kind: Model\nmetadata: {name: *i}\nspec: {storageUri: x, requirements: *i}\n",
    MERGES + "kind: InferenceService\nmetadata: *i\nspec: *i\n",
    "kind: &a [*a]\n", "a: &a [*a]\nkind: Model\nmetadata: *a\nspec: *a\n", "[" * 100_000, "{a: " * 100_000,
    "- " * 100_000 + "a", "kind: Model\nmetadata: {name: m}\nspec: [1]\n", "1:" * 400_000 + "1",
    "9" * 3_000_000, "\x00", "\t- a", "a: b: c", "? [a]\n: b\n", "!!python/object/apply:os.system [id]",
    "%YAML 9.9\n---\na", "--- \n" * 300_000, "x" * (5 << 20), "kind: List\nitems: {a: 1}\n",
    "kind: List\nitems: 3\n", "kind: Model\n", "a: *unknown\n",
]  # fmt: skip


@pytest.mark.parametrize("kind", ["kserve", "seldon", "bentoml"])
@pytest.mark.parametrize("text", DOCUMENTS, ids=range(len(DOCUMENTS)))
def test_yaml_is_bounded(kind: str, text: str, source: Path, capsys: Capture) -> None:
    (source / "m.yaml").write_text(text)
    refused([kind, str(source / "m.yaml"), "--storage", str(source)], source.parent, capsys)


@pytest.mark.parametrize(
    "content",
    [b"[" * 100_000, b'{"a":' * 100_000, b"9" * 100_000, b"\xff", b'"\\ud800"', b"null", b"", b"[]"],
)
@pytest.mark.parametrize("kind", ["mlserver", "eas"])
def test_json_is_bounded(kind: str, content: bytes, source: Path, capsys: Capture) -> None:
    (source / "model-settings.json").write_bytes(content)
    place = source if kind == "mlserver" else source / "model-settings.json"
    refused([kind, str(place)], source.parent, capsys)


@pytest.mark.parametrize(
    "settings",
    [
        {"parallel_workers": 10**18}, {"max_batch_size": "x"}, {"max_batch_size": -1},
        {"max_batch_size": 8, "max_batch_time": 1e300}, {"parameters": [1]}, {"parameters": {"uri": 3}},
        {"inputs": {"a": 1}}, {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1 << 70]}]},
        {"inputs": [{"name": "x", "datatype": "no", "shape": [1]}]}, {"outputs": [{"name": 1}]},
        {"parameters": {"extra": {"predict_fn": "__class__"}}},
        {"parameters": {"extra": {"predict_fn": [1]}}},
    ],
    ids=str,
)  # fmt: skip
def test_settings_of_wrong_types_and_sizes_are_refused(
    settings: dict[str, Any], source: Path, capsys: Capture
) -> None:
    arguments = mlserver(source, "m")
    document = json.loads((source / "model-settings.json").read_text())
    (source / "model-settings.json").write_text(json.dumps({**document, **settings}))
    refused(arguments, source.parent, capsys)


def test_one_bad_model_does_not_stop_the_others(source: Path, capsys: Capture) -> None:
    for name in ("a", "b", "c"):
        archive(source / f"{name}.mar", modelName=name)
    (source / "b.mar").write_bytes(b"PK")
    (source / "again.mar").write_bytes((source / "a.mar").read_bytes())
    assert migrate.main(["torchserve", str(source), "--to", str(source.parent / "to")]) == 1
    out = capsys.readouterr().out
    assert sorted(os.listdir(source.parent / "to")) == [".kept.migrating", "a", "c", "other"]
    assert f"b: not written: {source}/b.mar is no model archive" in out
    assert "a: not written: another model of this source has this name" in out


def test_notes_of_strangers_are_short_and_printable(source: Path, capsys: Capture) -> None:
    arguments = mlserver(source, "m")
    document = json.loads((source / "model-settings.json").read_text())
    more = {f"\x1b[2J\n{number}{'x' * 1000}": 1 for number in range(1000)}
    (source / "model-settings.json").write_text(json.dumps({**document, **more}))
    assert migrate.main([*arguments, "--to", str(source.parent / "to")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) < 60 and all(line.isprintable() and len(line) < 600 for line in lines)
