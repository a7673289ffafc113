"""Repository agents: checksums are compared, and unknown agents refused."""

from hashlib import md5
from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import ErrorCode, InferError
from deployments.model_store.agents import check_agents

RIGHT, WRONG = md5(b"right").hexdigest(), md5(b"wrong").hexdigest()


def agents(*parameters: str, name: str = "checksum") -> mc.ModelConfig:
    given = "".join(f"parameters {{ {each} }}" for each in parameters)
    text = f'name: "m" model_repository_agents {{ agents {{ name: "{name}" {given} }} }}'
    return text_format.Parse(text, mc.ModelConfig())


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.onnx").write_bytes(b"right")
    (tmp_path / "labels.txt").write_bytes(b"right")
    return tmp_path


def test_matching_checksums_pass(directory: Path) -> None:
    check_agents(mc.ModelConfig(), directory, 1)
    given = [f'key: "MD5:{name}" value: "{RIGHT}"' for name in ("1/model.onnx", "labels.txt")]
    check_agents(agents(*given, f'key: "MD5:2/model.onnx" value: "{RIGHT.upper()}"'), directory, 1)


@pytest.mark.parametrize(
    ("parameter", "text"),
    [
        (
            f'key: "MD5:1/model.onnx" value: "{WRONG}"',
            f"Mismatched MD5 hash for file 1/model.onnx, expect: {WRONG}, got: {RIGHT}",
        ),
        ('key: "MD5:1/none" value: ""', "failed to open file 1/none for its checksum: No such file"),
        (
            'key: "MD5:../x" value: ""',
            "file '../x' of repo agent 'checksum' is outside the model's directory",
        ),
        ('key: "SHA1:x" value: ""', "unexpected parameter 'SHA1:x' of repo agent 'checksum'"),
    ],
)
def test_wrong_checksums_are_refused(directory: Path, parameter: str, text: str) -> None:
    with pytest.raises(InferError) as caught:
        check_agents(agents(parameter), directory, 1)
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert caught.value.message.startswith(text)


def test_unknown_agent_is_refused(directory: Path) -> None:
    with pytest.raises(InferError) as caught:
        check_agents(agents(name="decrypt"), directory, 1)
    assert caught.value.message == "unable to find 'libtritonrepoagent_decrypt.so' for repo agent 'decrypt'"
