"""What processes are for, by their titles."""

import pytest

from app.cost.roles import Role, role_of


@pytest.mark.parametrize(
    ("title", "group"),
    [
        ("ray::ServeReplica:nereid:ingress", "ingress"),
        ("ray::ServeReplica:nereid:ingress.call", "ingress"),
        ("ray::ServeReplica:nereid:repository-manager.watch", "manager"),
        ("ray::ServeReplica:simple:1:simple", "model simple:1"),
        ("ray::ServeReplica:simple:12@3:simple.describe", "model simple:12@3"),
        ("ray::ServeReplica:a b:1~8c0a3f12@2:a b", "model a b:1~8c0a3f12@2"),
        ("nereid: model simple:1@2", "model simple:1@2"),
        ("ray::ServeReplica:ingress:1:ingress.describe", "model ingress:1"),
        ("ray::ServeController.listen_for_change", "serve"),
        ("ray::ProxyActor", "serve"),
        ("/x/ray/core/src/ray/gcs/gcs_server --log_dir=/x", "gcs"),
        ("/x/ray/core/src/ray/raylet/raylet --raylet_socket_name=/x", "raylet"),
        ("nereid: fork server of models", "fork server"),
        ("ray::IDLE", "ray"),
        ("/usr/bin/python -u /x/ray/dashboard/agent.py", "ray"),
        ("/x/python /x/backends/python/worker/worker_main.py 13 two_0_1 compiled", "model two"),
    ],
)
def test_titles(title: str, group: str) -> None:
    role = role_of(title)
    assert role is not None and role.group == group and Role.of_group(group) == role


def test_other_titles_say_nothing() -> None:
    assert role_of("python train.py") is None and role_of("") is None


def test_what_has_nothing_to_do_yet_is_looked_at_again() -> None:
    assert not Role().settled and not Role(kind="fork server").settled and not Role(kind="ray").settled
    assert Role("a:1").settled and Role(kind="raylet").settled
