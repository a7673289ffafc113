"""The Helm chart: rendered by Helm, checked as the manifests of `cluster/kubernetes` are."""

import re
import shutil
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from app.settings.flag.errors import SettingsError
from app.settings.load import from_args
from tests.server import ROOT
from tests.unit.cluster.manifests import Manifest, containers, pod_templates, read, refusals, the
from tests.unit.cluster.ray_files import deployed, pod_environment

helm = pytest.importorskip("helm_python")

FOLDER: Final = ROOT / "cluster/helm/nereid"
CHART: Final = helm.Chart.load(FOLDER)
REDIS: Final = {"backend": "redis", "redis": {"address": "redis:6379", "secret": "redis"}}
RAY_SERVICE: Final = {"ray": {"state": REDIS}}
DEPLOYMENT: Final = {"mode": "deployment"}
EVERYTHING: Final[dict[str, Any]] = {
    "imagePullSecrets": ["registry"],
    "models": {"repository": "s3://bucket/models"},
    "settings": {"strict_readiness": False, "exit_timeout_secs": 60},
    "clientTokens": {"secret": "tokens"},
    "env": [{"name": "AWS_REGION", "value": "eu-central-1"}],
    "envFrom": [{"secretRef": {"name": "cloud"}}],
    "serviceAccount": "models",
    "nodeSelector": {"disk": "fast"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "podAnnotations": {"a": "b"},
    "service": {"type": "LoadBalancer", "annotations": {"c": "d"}},
    "networkPolicy": {"clients": [{"namespaceSelector": {}}], "monitors": [{"namespaceSelector": {}}]},
    "podMonitor": {
        "enabled": True,
        "rules": True,
        "labels": {"e": "f"},
        "token": {"name": "metrics", "key": "token"},
    },
}
ROCKSDB: Final = {"backend": "rocksdb", "volume": {"storageClass": "ssd"}}
GPUS: Final = {
    "name": "gpus",
    "replicas": 1,
    "maxReplicas": 4,
    "rayStartParams": {"resources": '"{\\"l4\\": 1}"'},
    "nodeSelector": {"gpu": "l4"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
    "resources": {"limits": {"nvidia.com/gpu": 1}},
}
KEDA: Final = {"autoscaling": {"by": "keda", "prometheus": "http://prometheus:9090"}}
README: Final = re.search(r"```yaml\n(.*?)```", (ROOT / "cluster/README.md").read_text(), re.DOTALL)
assert README is not None
CASES: Final[Mapping[str, dict[str, Any]]] = {
    "ray": {},
    "ray-redis": RAY_SERVICE,
    "readme": yaml.safe_load(README[1]),
    "ray-everything": EVERYTHING
    | {"ray": {"token": {"secret": "ray"}, "state": ROCKSDB, "autoscaling": True, "workers": [GPUS]}},
    "deployment": DEPLOYMENT,
    "deployment-hpa": DEPLOYMENT | {"deployment": {"autoscaling": {"by": "hpa"}}},
    "deployment-everything": EVERYTHING | DEPLOYMENT | {"deployment": KEDA},
}


def render(values: Mapping[str, Any], release: str = "nereid", chart: Any = CHART) -> list[Manifest]:
    texts = chart.render(values, name=release, namespace="models")
    manifests = [
        yaml.load_all(text, yaml.CSafeLoader) for name, text in texts.items() if name.endswith(".yaml")
    ]
    return [document for documents in manifests for document in documents if document]


def serve_config(manifests: list[Manifest]) -> Any:
    texts = [
        each["data"]["serve.yaml"] if each["kind"] == "ConfigMap" else each["spec"]["serveConfigV2"]
        for each in manifests
        if each["kind"] in ("ConfigMap", "RayService")
    ]
    (text,) = texts
    return yaml.safe_load(text)


def arguments(manifests: list[Manifest], directory: Path) -> dict[str, Any]:
    (application,) = serve_config(manifests)["applications"]
    tokens = directory / "tokens"
    tokens.touch(0o600)
    args: dict[str, Any] = application["args"] | {"model_repository": str(directory)}
    return args | ({"auth_tokens_file": str(tokens)} if "auth_tokens_file" in args else {})


def test_lint_has_nothing_to_say() -> None:
    report = helm.chart.lint(FOLDER, strict=True)
    assert report["errors"] == []
    assert [each["error"] for each in report["messages"]] == ["icon is recommended"]


@pytest.mark.parametrize("case", CASES)
def test_manifests_are_accepted(case: str) -> None:
    found = {each["kind"]: refusals(each) for each in render(CASES[case])}
    assert found == {kind: [] for kind in found}
    assert {"Service", "NetworkPolicy"} <= set(found)


@pytest.mark.parametrize("case", CASES)
def test_server_accepts_the_settings(case: str, tmp_path: Path) -> None:
    manifests = render(CASES[case])
    config = serve_config(manifests)
    assert deployed(config) == config
    server = from_args(arguments(manifests, tmp_path))
    for manifest in manifests:
        for template in pod_templates(manifest):
            assert template["spec"]["terminationGracePeriodSeconds"] >= server.server.exit_timeout_s + 50


@pytest.mark.parametrize(
    ("template", "right", "wrong", "said"),
    [
        ("deployment.yaml", "minReadySeconds:", "minReadySecond:", "minReadySecond"),
        ("_helpers.tpl", "runAsUser: 1000", 'runAsUser: "1000"', "is not of type"),
        ("networkpolicy.yaml", "podSelector:", "podSelectors:", "podSelectors"),
        ("autoscaling.yaml", "| quote", "", "16 is not of type 'string'"),
    ],
)
def test_mistake_in_a_template_is_found(
    tmp_path: Path, template: str, right: str, wrong: str, said: str
) -> None:
    path = Path(shutil.copytree(FOLDER, tmp_path / "nereid")) / "templates" / template
    text = path.read_text()
    assert right in text
    path.write_text(text.replace(right, wrong))
    with helm.Chart.load(tmp_path / "nereid") as chart:
        manifests = render(CASES["deployment-everything"], chart=chart)
    found = [refusal for each in manifests for refusal in refusals(each)]
    assert any(said in refusal for refusal in found), found


def test_server_refuses_a_misspelt_setting(tmp_path: Path) -> None:
    manifests = render({"settings": {"strict_redyness": True}})
    with pytest.raises(SettingsError, match="strict_readiness"):
        from_args(arguments(manifests, tmp_path))


def test_manifest_of_kuberay_is_what_the_chart_makes() -> None:
    written, rendered = read(ROOT / "cluster/kubernetes/rayservice.yaml"), render(RAY_SERVICE)
    for kind in ("RayService", "Service", "PodDisruptionBudget"):
        manifest, expected = deepcopy(the(kind, rendered)["spec"]), deepcopy(the(kind, written)["spec"])
        manifest.pop("type", None)  # ClusterIP
        if kind == "RayService":
            for spec in (manifest, expected):
                spec["serveConfigV2"] = yaml.safe_load(spec["serveConfigV2"])
        assert manifest == expected


def test_ray_nodes_have_the_settings_of_ray_and_the_users() -> None:
    expected = pod_environment(drain_s=EVERYTHING["settings"]["exit_timeout_secs"] + 30)
    for container in containers(the("RayService", render(CASES["ray-everything"]))):
        variables = {each["name"]: each["value"] for each in container["env"]}
        assert variables == expected | {"AWS_REGION": "eu-central-1"}


@pytest.mark.parametrize("case", CASES)
def test_service_budget_and_policy_mean_the_same_pods(case: str) -> None:
    manifests = render(CASES[case], release="release")
    (owner,) = [each for each in manifests if pod_templates(each)]
    pods = [each["metadata"]["labels"] for each in pod_templates(owner)]
    service = the("Service", manifests)
    answering = [labels for labels in pods if service["spec"]["selector"].items() <= labels.items()]
    assert len(answering) == len(pods) - (owner["kind"] == "RayService")
    policy = the("NetworkPolicy", manifests)["spec"]["podSelector"]["matchLabels"]
    assert all(policy.items() <= labels.items() for labels in pods)
    for monitor in (each for each in manifests if each["kind"] == "PodMonitor"):
        assert monitor["spec"]["selector"]["matchLabels"] == policy
    for budget in (each for each in manifests if each["kind"] == "PodDisruptionBudget"):
        assert budget["spec"]["selector"]["matchLabels"] == service["spec"]["selector"]
    assert {each["metadata"]["name"] for each in manifests} == {"release-nereid"}


@pytest.mark.parametrize("case", CASES)
def test_containers_are_restricted(case: str) -> None:
    for manifest in render(CASES[case]):
        for template in pod_templates(manifest):
            pod = template["spec"]["securityContext"]
            assert pod["runAsNonRoot"] and pod["seccompProfile"] == {"type": "RuntimeDefault"}
            for container in template["spec"]["containers"]:
                own = container["securityContext"]
                assert own["readOnlyRootFilesystem"] and not own["allowPrivilegeEscalation"]
                assert own["capabilities"] == {"drop": ["ALL"]}
                mounts = {each["name"] for each in container["volumeMounts"]}
                assert mounts == {each["name"] for each in template["spec"]["volumes"]}


def test_only_the_autoscaler_of_ray_may_ask_kubernetes() -> None:
    def mounted(values: Mapping[str, Any]) -> list[bool]:
        templates = pod_templates(the("RayService", render(values)))
        return [each["spec"].get("automountServiceAccountToken", True) for each in templates]

    assert mounted({}) == [False, False]
    assert mounted({"ray": {"autoscaling": True}}) == [True, False]


def test_a_rollout_of_single_servers_starts_before_it_ends() -> None:
    spec = the("Deployment", render(DEPLOYMENT))["spec"]
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    (container,) = spec["template"]["spec"]["containers"]
    assert container["command"] == ["tini", "--", "nereid-serve", "/etc/nereid/settings/serve.yaml"]
    assert container["readinessProbe"]["httpGet"] == {"path": "/-/healthz", "port": "serve"}
    changed = the("Deployment", render(DEPLOYMENT | {"settings": {"log_verbose": 1}}))["spec"]
    assert changed["template"]["metadata"] != spec["template"]["metadata"]  # or no Pod would be replaced
    assert "replicas" not in the("Deployment", render(CASES["deployment-hpa"]))["spec"]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"mode": "cluster"}, "mode"),
        ({"imagee": {}}, "imagee"),
        ({"image": {"tag": 1}}, "image/tag"),
        ({"ray": {"workers": [{"name": "a", "replicas": "2", "resources": {}}]}}, "replicas"),
        ({"settings": {"http_port": 9000}}, "http_port"),
        ({"deployment": {"resources": {"limit": {}}}}, "limit"),
        ({"deployment": {"sharedMemory": "2 GB"}}, "sharedMemory"),
        ({"models": {"repository": "/models"}}, "repository"),
        ({"ray": {"state": {"backend": "redis"}}}, "ray.state.redis.address"),
    ],
)
def test_wrong_values_are_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(helm.HelmError, match=said):
        render(values)


def test_rules_are_those_of_prometheus() -> None:
    rules = the("PrometheusRule", render(CASES["ray-everything"]))["spec"]
    assert rules == yaml.safe_load((ROOT / "cluster/prometheus/nereid.rules.yml").read_text())


def test_versions_are_those_of_the_project() -> None:
    chart = yaml.safe_load((FOLDER / "Chart.yaml").read_text())
    project = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{chart["appVersion"]}"' in project
    ray = the("RayService", render({}))["spec"]["rayClusterConfig"]["rayVersion"]
    assert f"ray[serve]=={ray}" in project
