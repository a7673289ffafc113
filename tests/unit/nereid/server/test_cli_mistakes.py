"""What a command line most likely meant."""

from pathlib import Path

import pytest

from app.settings.flag.errors import SettingsError
from nereid.server.cli import parse


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["models"], "Unexpected argument: models; did you mean 'nereid --model-repository=models'?"),
        (["serve", "models"], "Unexpected argument: serve; did you mean 'nereid --model-repository=models'?"),
        (["start"], "did you mean 'nereid --model-repository=DIRECTORY'?"),
        (["s3://a/b"], "did you mean 'nereid --model-repository=s3://a/b'?"),
        (["statsu"], "did you mean 'nereid status'?"),
        (["--trace-config=triton,fiel=x"], "unknown setting in 'triton,fiel=x'; did you mean 'file'?"),
        (["--trace-config=opentelemetry,ulr=x"], "did you mean 'url'?"),
        (["--trace-config=qqq=1"], "the settings are file, mode, level, rate, count, log-frequency"),
    ],
)
def test_mistakes_name_the_way_out(
    flags: list[str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError) as raised:
        parse([*flags, "--model-repository=models"])
    assert text in str(raised.value)
