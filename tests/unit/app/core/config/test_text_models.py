"""Recognition of text models by their configurations."""

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.text_models import text_model
from app.core.errors import InferError

TEXT = "TYPE_STRING dims: [ 1 ]"


def config(inputs: str, outputs: str, settings: str = "") -> mc.ModelConfig:
    """Return a configuration of tensors, as `name TYPE dims, ...`; `?` marks an optional input."""

    def tensors(kind: str, text: str) -> str:
        parts = []
        for each in filter(None, map(str.strip, text.split(";"))):
            name, _, rest = each.partition(" ")
            optional = "optional: true" if name.endswith("?") else ""
            parts.append(f'{kind} [{{ name: "{name.rstrip("?")}" data_type: {rest} {optional} }}]')
        return "\n".join(parts)

    found = text_format.Parse(
        f'name: "m" {tensors("input", inputs)} {tensors("output", outputs)}', mc.ModelConfig()
    )
    if settings:
        found.parameters["openai"].string_value = settings
    return found


VLLM = f"text_input {TEXT}; stream? TYPE_BOOL dims: [ 1 ]; sampling_parameters? {TEXT}"
VLLM_OUT = f"text_output {TEXT}"
TRTLLM = f"text_input {TEXT}; max_tokens TYPE_INT32 dims: [ 1 ]; stop_words? {TEXT}"
VECTOR = "embedding TYPE_FP32 dims: [ 384 ]"


@pytest.mark.parametrize(
    ("inputs", "outputs", "settings", "format_", "tasks"),
    [
        (VLLM, VLLM_OUT, "", "vllm", ("chat", "completions")),
        (f"{VLLM}; embedding_request? {TEXT}", VLLM_OUT, "", "vllm", ("chat", "completions", "embeddings")),
        (TRTLLM, VLLM_OUT, "", "trtllm", ("chat", "completions")),
        (f"prompt {TEXT}", f"answer {TEXT}", "", "text", ("completions",)),
        (f"prompt {TEXT}", f"a {TEXT}", '{"chat_template": "c.jinja"}', "text", ("chat", "completions")),
        (f"prompt {TEXT}", f"a {TEXT}", '{"tasks": ["chat"]}', "text", ("chat",)),
        (f"prompt {TEXT}; messages? {TEXT}", f"a {TEXT}", "", "text", ("chat", "completions")),
        (f"messages {TEXT}", f"a {TEXT}", "", "text", ("chat",)),
        (f"text {TEXT}", VECTOR, "", "vector", ("embeddings",)),
        (f"text {TEXT}", VECTOR, '{"rerank": "cosine"}', "vector", ("embeddings", "rerank")),
        (f"query {TEXT}; document {TEXT}", "score TYPE_FP32 dims: [ 1 ]", "", "pair", ("rerank",)),
    ],
)
def test_tensors_say_what_a_model_is_for(
    inputs: str, outputs: str, settings: str, format_: str, tasks: tuple[str, ...]
) -> None:
    found = text_model(config(inputs, outputs, settings))
    assert found is not None
    assert (found.format, found.tasks) == (format_, tasks)


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ("x TYPE_FP32 dims: [ 4 ]", "y TYPE_FP32 dims: [ 4 ]"),
        (f"a {TEXT}; b {TEXT}", f"c {TEXT}"),
        (f"a {TEXT}; n TYPE_INT32 dims: [ 1 ]", f"c {TEXT}"),
        ("a TYPE_STRING dims: [ 16 ]", f"c {TEXT}"),
        (f"a {TEXT}", f"c {TEXT}; d {TEXT}"),
    ],
)
def test_others_have_nothing_to_do_with_text(inputs: str, outputs: str) -> None:
    assert text_model(config(inputs, outputs)) is None


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ("[", "must be a JSON object of settings"),
        ('{"task": []}', "unknown field `task`"),
        ('{"tasks": ["speech"]}', "speech"),
        ('{"tasks": ["rerank"]}', "says task 'rerank', and format 'text' is for completions"),
        ('{"format": "pair"}', "says format 'pair', which the model's inputs and outputs do not fit"),
        ('{"max_tokens": -1}', "has a negative 'max_tokens'"),
        ('{"chat_template": "../x"}', "not in the version's directory"),
        ('{"chat_template": "/x"}', "not in the version's directory"),
    ],
)
def test_a_mistake_in_the_parameter_is_named(settings: str, text: str) -> None:
    with pytest.raises(InferError, match="model 'm': parameter 'openai'") as error:
        text_model(config(f"prompt {TEXT}", f"answer {TEXT}", settings))
    assert text in error.value.message


def test_a_parameter_of_a_model_without_text_needs_a_format() -> None:
    with pytest.raises(InferError, match="neither its tensors nor a 'format' say"):
        text_model(config("x TYPE_FP32 dims: [ 4 ]", "y TYPE_FP32 dims: [ 4 ]", "{}"))
