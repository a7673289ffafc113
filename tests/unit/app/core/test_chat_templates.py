"""Files of chat templates."""

import json
from pathlib import Path

import pytest

from app.core.chat_templates import MAX_TEMPLATE_BYTES, ChatTemplate, read_template, read_tokenizer


def test_a_tokenizers_folder_has_a_template_and_its_tokens(tmp_path: Path) -> None:
    config = {"chat_template": "old", "bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    assert read_tokenizer(tmp_path) == ChatTemplate("old", tokens)
    (tmp_path / "chat_template.jinja").write_text("new")
    assert read_tokenizer(tmp_path) == ChatTemplate("new", tokens)
    assert read_template(tmp_path / "chat_template.jinja") == ChatTemplate("new", tokens)


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no chat template"):
        read_tokenizer(tmp_path)
    with pytest.raises(ValueError, match="No such file"):
        read_template(tmp_path / "x")
    (tmp_path / "x").write_bytes(b"x" * (MAX_TEMPLATE_BYTES + 1))
    with pytest.raises(ValueError, match="more than"):
        read_template(tmp_path / "x")
    (tmp_path / "tokenizer_config.json").write_text("[")
    with pytest.raises(ValueError, match="tokenizer_config"):
        read_tokenizer(tmp_path)
