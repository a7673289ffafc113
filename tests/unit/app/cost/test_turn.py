"""One process measures a node."""

from pathlib import Path

from app.cost.turn import Turn


def test_one_has_the_place_until_it_leaves(tmp_path: Path) -> None:
    one, other, elsewhere = Turn(b"key", tmp_path), Turn(b"key", tmp_path), Turn(b"another", tmp_path)
    assert one.taken() and one.taken() and not other.taken() and elsewhere.taken()
    one.close()
    assert other.taken() and not one.taken()
    other.close()
    elsewhere.close()
