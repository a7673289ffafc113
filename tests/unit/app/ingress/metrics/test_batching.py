"""What `/metrics` says of batches."""

from prometheus_client.parser import text_string_to_metric_families
from tritonclient.grpc import service_pb2 as pb

from app.ingress.metrics.batching import batching_lines
from app.ingress.metrics.labels import Labels
from app.ingress.service.replica_statistics import ReplicaStatistics, merge


def part(releases: dict[str, int], age_ns: int = 0, **batches: int) -> ReplicaStatistics:
    message = pb.ModelStatistics(name="m", version="1")
    for name, count in batches.items():
        message.batch_stats.add(batch_size=int(name[1:]), compute_infer=pb.StatisticDuration(count=count))
    return ReplicaStatistics(message, {}, 0, releases, age_ns)


def test_nothing_before_the_first_batch() -> None:
    assert batching_lines([(Labels({"model": "m"}), part({}))]) == []


def test_sizes_reasons_and_age_of_all_replicas() -> None:
    total = merge([part({"full": 2, "idle": 1}, 5000, b1=1, b3=2), part({"full": 3}, 7000, b3=1, b300=2)])
    text = "\n".join(batching_lines([(Labels({"version": "1", "model": "m"}), total)])) + "\n"
    assert 'nereid_batch_release{model="m",reason="full",version="1"} 5\n' in text
    samples = {
        (sample.name, sample.labels.get("le") or sample.labels.get("reason")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    sizes = [samples["nereid_batch_size_bucket", str(bound)] for bound in (1, 2, 4, 256)]
    assert sizes == [1, 1, 4, 4]
    assert samples["nereid_batch_size_bucket", "+Inf"] == samples["nereid_batch_size_count", None] == 6
    assert samples["nereid_batch_size_sum", None] == 1 + 9 + 600
    releases = {reason: value for (name, reason), value in samples.items() if "release" in name}
    assert releases == {"full": 5, "idle": 1}
    assert samples["nereid_queue_age_us", None] == 7
