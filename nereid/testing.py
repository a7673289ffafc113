"""Unit tests of models, without a server: see docs/testing.md.

from nereid.testing import load_model

def test_doubles():
    with load_model("models/double") as model:
        assert model(IN=[1.0, 2.0])["OUT"].tolist() == [2.0, 4.0]
"""

from nereid.internals import load_internals

load_internals()

# After the call, which decides whose packages these are.
from app.testing.models import LoadedModel, Response, load_model  # noqa: E402
from nereid.errors import InferError  # noqa: E402

__all__ = ["InferError", "LoadedModel", "Response", "load_model"]
