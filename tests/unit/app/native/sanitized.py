"""A plugin of pytest: the extension is the one in the directory SANITIZED (`make test-sanitizers`)."""

import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import app.native

(_file,) = Path(os.environ["SANITIZED"]).rglob("extension.*.so")
_spec = spec_from_file_location("app.native.extension", _file)
assert _spec is not None and _spec.loader is not None
_sanitized = sys.modules[_spec.name] = module_from_spec(_spec)
_spec.loader.exec_module(_sanitized)
vars(app.native)["extension"] = _sanitized
