"""The files of `cluster/`, checked by what reads them."""

from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import pytest
import ray
import yaml
from jsonschema import ValidationError
from ray.autoscaler._private.util import prepare_config, validate_config

from nereid.server.check_config import check
from tests.server import ROOT
from tests.unit.cluster.ray_files import deployed, ray_environment

CLUSTER: Final = ROOT / "cluster"
LAUNCHED: Final = ("cluster.yaml", "aws.yaml", "gcp.yaml")


def read(name: str) -> Any:
    return yaml.safe_load((CLUSTER / name).read_text())


@pytest.mark.parametrize("name", LAUNCHED)
def test_ray_up_accepts_the_cluster_file(name: str) -> None:
    validate_config(prepare_config(read(name)))


@pytest.mark.parametrize("name", LAUNCHED)
def test_ray_up_refuses_a_misspelt_field(name: str) -> None:
    wrong = deepcopy(read(name))
    wrong["worker_start_ray_command"] = wrong.pop("worker_start_ray_commands")
    with pytest.raises(ValidationError, match="worker_start_ray_command"):
        validate_config(prepare_config(wrong))


@pytest.mark.parametrize("name", LAUNCHED)
@pytest.mark.parametrize("commands", ["head_start_ray_commands", "worker_start_ray_commands"])
def test_every_node_starts_ray_with_the_settings_and_the_token(name: str, commands: str) -> None:
    config = read(name)
    (start,) = [command for command in config[commands] if "ray start" in command]
    assert ". ~/nereid-server/cluster/ray.env" in start
    assert "~/.ray/auth_token" in config["file_mounts"]
    assert "chmod 600 ~/.ray/auth_token" in config["setup_commands"]


def test_settings_of_ray_are_known_to_this_version() -> None:
    """Ray ignores names that it does not know."""
    package = Path(ray.__file__).parent
    sources = [*package.glob("_private/*.py"), *package.glob("_common/**/*.py"), package / "_raylet.so"]
    sources += package.glob("serve/_private/constants.py")
    known = b"".join(path.read_bytes() for path in sources)
    unknown = [name for name in ray_environment() if name.removeprefix("RAY_").encode() not in known]
    assert unknown == []


def test_serve_accepts_the_deployment() -> None:
    config = read("serve.yaml")
    assert deployed(config) == config and config["applications"][0]["external_scaler_enabled"]


def test_settings_of_the_deployment_are_right(tmp_path: Path) -> None:
    copy = tmp_path / "serve.yaml"
    copy.write_text((CLUSTER / "serve.yaml").read_text().replace("/srv/models", str(tmp_path)))
    (settings,) = check(copy)
    assert settings.http.address == "0.0.0.0" and settings.cluster.channel_address == "node"
