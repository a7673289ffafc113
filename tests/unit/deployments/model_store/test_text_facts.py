"""What the files of a text model tell the ingresses."""

import json
from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc

from app.core.chat_templates import ChatTemplate, TextFacts
from app.core.errors import InferError
from deployments.model_store.text_facts import read_text_facts

TEXT = """
name: "m" input [{ name: "prompt" data_type: TYPE_STRING dims: [ 1 ] }]
output [{ name: "text_output" data_type: TYPE_STRING dims: [ 1 ] }]
"""


def config(**settings: str) -> mc.ModelConfig:
    found = text_format.Parse(TEXT, mc.ModelConfig())
    found.parameters["openai"].string_value = json.dumps(settings)
    return found


@pytest.fixture
def version(tmp_path: Path) -> Path:
    folder = tmp_path / "1"
    folder.mkdir()
    return folder


def test_a_template_is_a_file_of_the_version(tmp_path: Path, version: Path) -> None:
    (version / "chat.jinja").write_text("{{ messages }}")
    facts = read_text_facts(tmp_path, 1, config(chat_template="chat.jinja"))
    assert facts == TextFacts(ChatTemplate("{{ messages }}"))


@pytest.mark.parametrize("name", ["none.jinja", "."])
def test_a_template_that_is_not_there_fails_the_load(tmp_path: Path, version: Path, name: str) -> None:
    with pytest.raises(InferError, match="model 'm': the chat template cannot be used"):
        read_text_facts(tmp_path, 1, config(chat_template=name))


def test_files_of_vllms_backend_tell_adapters_and_the_context(tmp_path: Path, version: Path) -> None:
    (version / "multi_lora.json").write_text('{"a": "x", "b": "y"}')
    (version / "model.json").write_text('{"max_model_len": 128}')
    vllm = config(format="vllm")
    vllm.input[0].name = "text_input"
    assert read_text_facts(tmp_path, 1, vllm) == TextFacts(
        adapters=("a", "b"), max_model_len=128, keeps_prefixes=True
    )
    for broken in ("[", "[]", '{"max_model_len": "x"}'):
        (version / "model.json").write_text(broken)
        assert read_text_facts(tmp_path, 1, vllm).max_model_len == 0


def test_adapters_are_unknown_where_no_engine_is_and_none_where_it_is_not_to_have_any(
    tmp_path: Path, version: Path
) -> None:
    (version / "multi_lora.json").write_text('{"a": "x"}')
    vllm = config(format="vllm")
    vllm.input[0].name = "text_input"
    assert read_text_facts(tmp_path, 1, vllm).adapters is None
    vllm.backend = "vllm"
    for engine, adapters in (
        ("{}", ()),
        ('{"enable_lora": "true"}', ("a",)),
        ('{"enable_lora": true}', ("a",)),
    ):
        (version / "model.json").write_text(engine)
        assert read_text_facts(tmp_path, 1, vllm).adapters == adapters


@pytest.mark.parametrize(
    ("engine", "keeps"),
    [
        ("{}", True),
        ('{"prefix_cache_bytes": 0}', False),
        ('{"prefix_cache_bytes": 9}', True),
        ('{"enable_prefix_caching": false}', False),
        ("[", False),
    ],
)
def test_engines_keep_the_beginnings_of_prompts_unless_told_not_to(
    tmp_path: Path, version: Path, engine: str, keeps: bool
) -> None:
    vllm = config(format="vllm")
    vllm.input[0].name = "text_input"
    (version / "model.json").write_text(engine)
    assert read_text_facts(tmp_path, 1, vllm).keeps_prefixes is keeps


def test_other_models_have_none(tmp_path: Path) -> None:
    assert read_text_facts(tmp_path, 1, mc.ModelConfig(name="m")) == TextFacts()
