"""Unit tests of models, without a server: see docs/use/testing.md.

from nereid.testing import load_model

def test_doubles():
    with load_model("models/double") as model:
        assert model(IN=[1.0, 2.0])["OUT"].tolist() == [2.0, 4.0]
"""

from nereid.internals import is_replaced

if not is_replaced(__name__):
    from nereid.errors import InferError
    from nereid.testing.models import LoadedModel, Response, load_model

__all__ = ["InferError", "LoadedModel", "Response", "load_model"]
