"""The replicas that Serve reports reach the subscriber of their application."""

from app.ray_adapter.serve import replicas
from app.ray_adapter.serve.replicas import ReplicaAddress


def test_replicas_that_listen_are_passed_to_the_subscriber() -> None:
    seen: list[tuple[ReplicaAddress, ...]] = []
    replicas.subscribe("m:1", seen.append)
    tcp = {"node_id": "n", "tcp": "tcp:127.0.0.1:1"}
    replicas.publish("m:1", {"a": tcp, "failed": {"node_id": "n"}, "broken": {}})
    replicas.publish("m:2", {"a": tcp})
    replicas.unsubscribe("m:1", seen.append)
    replicas.publish("m:1", {"a": tcp})
    assert seen == [(ReplicaAddress("a", "n", "", "tcp:127.0.0.1:1"),)]


def test_subscribers_of_an_application_do_not_replace_each_other() -> None:
    first: list[object] = []
    second: list[object] = []
    replicas.subscribe("m:1", first.append)
    replicas.subscribe("m:1", second.append)
    replicas.publish("m:1", {})
    replicas.unsubscribe("m:1", second.append)
    replicas.publish("m:1", {})
    replicas.unsubscribe("m:1", first.append)
    replicas.publish("m:1", {})
    assert (len(first), len(second)) == (2, 1)
