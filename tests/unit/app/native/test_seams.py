"""Whoever looks for why a breakpoint is not hit finds all places where C takes over."""

import re
from pathlib import Path

import app.native

ROOT = Path(app.native.__file__).parents[2]


def test_each_class_that_uses_what_is_compiled_is_in_the_one_list_of_them() -> None:
    named = set(re.findall(r"`(\w+)`", app.native.__doc__ or ""))
    for folder in ("app", "deployments"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text()
            for found in re.finditer(r"    def use_compiled\(", text):
                owner = re.findall(r"^class (\w+)", text[: found.start()], re.MULTILINE)[-1]
                assert owner in named, f"{path} is to be named in app/native/__init__.py"
