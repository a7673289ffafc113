"""The state of ensembles as a function of the models they call, and their loads and unloads."""

import asyncio
from pathlib import Path

import pytest

from app.core.errors import InferError
from app.ensemble.graph import EnsembleGraph
from app.routing.manager_client import LoadRequest
from app.routing.table import ModelState, VersionEntry
from deployments.manager.publishing.ensembles import effective
from tests.unit.deployments.manager.manager_bench import Bench, FakeServe, started
from tests.unit.ensembles import DECOUPLED, ensemble, entry, model, step
from tests.waiting import until

CHAIN = ensemble(step({"x": "IN"}, {"y": "MID"}, "a"), step({"x": "MID"}, {"y": "OUT"}, "b"))
UNLOADED = VersionEntry("b", 1, ModelState.UNAVAILABLE, "unloaded")
FAILED = VersionEntry("b", 1, ModelState.UNAVAILABLE, "Internal: no file")
LOADING = VersionEntry("b", 1, ModelState.LOADING)


def state_of(*entries: VersionEntry, name: str = "e") -> VersionEntry:
    by_name: dict[str, dict[int, VersionEntry]] = {}
    for one in entries:
        by_name.setdefault(one.name, {})[one.version] = one
    return next(found for found in effective(by_name) if found.name == name)


def reason(config: str, *others: VersionEntry) -> str:
    found = state_of(entry("e", config), *others)
    assert found.state is ModelState.UNAVAILABLE
    return found.reason


def reason_in(name: str, config: str, *others: VersionEntry) -> str:
    return state_of(entry(name, config), *others, name=name).reason


A, B = entry("a", model()), entry("b", model())


class TestState:
    def test_ready_when_its_steps_are(self) -> None:
        assert state_of(entry("e", CHAIN), A, B).state is ModelState.READY

    def test_loading_while_a_step_loads(self) -> None:
        assert state_of(entry("e", CHAIN), A, LOADING).state is ModelState.LOADING

    def test_unloaded_when_a_step_is(self) -> None:
        assert state_of(entry("e", CHAIN), A, UNLOADED).unloaded_by_request

    def test_decoupled_when_a_step_is(self) -> None:
        assert not state_of(entry("e", CHAIN), A, B).decoupled
        assert state_of(entry("e", CHAIN), A, entry("b", model(more=DECOUPLED))).decoupled

    def test_transaction_policy_is_always_configured(self) -> None:
        assert state_of(entry("e", CHAIN), A, B).model_config.HasField("model_transaction_policy")

    def test_ensemble_may_call_an_ensemble(self) -> None:
        outer = entry("outer", ensemble(step({"IN": "IN"}, {"OUT": "OUT"}, "e")))
        assert state_of(outer, entry("e", CHAIN), A, B, name="outer").state is ModelState.READY
        gone = state_of(outer, entry("e", CHAIN), A, FAILED, name="outer")
        assert "'outer' depends on 'e' which has no loaded version." in gone.reason

    def test_step_prefers_the_ensembles_namespace(self) -> None:
        own, other = entry("/x::m", model()), entry("/y::m", model(outputs="z"))
        config = ensemble(step({"x": "IN"}, {"y": "OUT"}, "m"))
        found = state_of(entry("/x::e", config), own, other, name="/x::e")
        assert found.state is ModelState.READY
        assert [step.model for step in EnsembleGraph.from_config(found.model_config).steps] == ["/x::m"]
        assert "non-existing output y in model /y::m" in reason_in("/y::e", config, own, other)

    def test_step_may_be_the_only_model_of_its_name(self) -> None:
        config = ensemble(step({"x": "IN"}, {"y": "OUT"}, "m"))
        unloaded = VersionEntry("/x::m", 1, ModelState.UNAVAILABLE, "unloaded")
        found = state_of(entry("/x::e", config), unloaded, entry("/y::m", model()), name="/x::e")
        assert [step.model for step in EnsembleGraph.from_config(found.model_config).steps] == ["/y::m"]
        others = entry("/y::m", model()), entry("/z::m", model())
        text = "Invalid argument: ensemble /x::e contains models that are not available or ambiguous: m"
        assert reason_in("/x::e", config, *others) == text

    def test_labels_come_from_the_step_that_produces_the_output(self) -> None:
        labelled = entry("b", model(), labels={"y": ("cat", "dog")})
        assert state_of(entry("e", CHAIN), A, labelled).labels == {"OUT": ("cat", "dog")}
        own = entry("e", CHAIN, labels={"OUT": ("own",)})
        assert state_of(own, A, labelled).labels == {"OUT": ("own",)}


class TestReasons:
    def test_failed_step_makes_it_unavailable(self) -> None:
        assert reason(CHAIN, A, FAILED) == (
            "Invalid argument: ensemble 'e' depends on 'b' which has no loaded version. Model 'b' loading "
            "failed with error: version 1 is at UNAVAILABLE state: Internal: no file;"
        )

    def test_unknown_step_makes_it_unavailable(self) -> None:
        text = "Invalid argument: ensemble e contains models that are not available or ambiguous: b"
        assert reason(CHAIN, A) == text

    def test_unloaded_version_makes_it_unavailable(self) -> None:
        config = ensemble(step({"x": "IN"}, {"y": "OUT"}, "a", version=3))
        text = "Invalid argument: ensemble 'e' depends on 'a' whose required version 3 is not loaded."
        assert reason(config, A) == text

    def test_cycle_of_ensembles_is_reported(self) -> None:
        one = ensemble(step({"IN": "IN"}, {"OUT": "OUT"}, "f"))
        other = entry("f", ensemble(step({"IN": "IN"}, {"OUT": "OUT"}, "e")))
        assert "circular dependency between ensembles: e -> ... -> f -> e" in reason(one, other)

    @pytest.mark.parametrize(
        ("config", "step_model", "text"),
        [
            (
                ensemble(step({"x": "IN"}, {"y": "OUT"}, "m")),
                model().replace("TYPE_FP32", "TYPE_INT32", 1),
                "in ensemble e, ensemble tensor IN: inconsistent data type: TYPE_FP32 is inferred from "
                "model e while TYPE_INT32 is inferred from model m",
            ),
            (
                ensemble(step({"x": "IN"}, {"y": "OUT"}, "m"), batch=2),
                model(batch=2).replace("[ 4 ]", "[ 16, 4 ]", 1),
                "in ensemble e, ensemble tensor IN: inconsistent shape: [-1,4] is inferred from model e "
                "while [-1,16,4] is inferred from model m",
            ),
            (
                ensemble(step({"z": "IN", "x": "IN"}, {"y": "OUT"}, "m")),
                model(),
                "in ensemble e, ensemble tensor IN is mapping to non-existing input z in model m",
            ),
            (
                ensemble(step({"x": "IN"}, {"q": "OUT"}, "m")),
                model(),
                "in ensemble e, ensemble tensor OUT is mapped from non-existing output q in model m",
            ),
            (
                ensemble(step({"x": "IN"}, {"y": "OUT"}, "m")),
                model("x z"),
                "in ensemble e, input z in model m is not mapped to any ensemble tensors",
            ),
            (
                ensemble(step({"x": "IN"}, {"y": "OUT"}, "m"), batch=8),
                model(batch=4),
                "ensemble e allows maximum batch size 8, but it contains model m which only allows maximum "
                "batch size to be 4",
            ),
        ],
    )
    def test_mismatched_tensors_are_reported(self, config: str, step_model: str, text: str) -> None:
        assert reason(config, entry("m", step_model)) == f"Invalid argument: {text}"

    def test_reshaped_tensors_of_the_ensemble_are_compared_in_their_inner_shape(self) -> None:
        config = ensemble(step({"x": "IN"}, {"y": "OUT"}, "m"))
        inner = config.replace("dims: [ 4 ]", "dims: [ 2, 2 ] reshape { shape: [ 4 ] }")
        assert state_of(entry("e", inner), entry("m", model())).state is ModelState.READY
        outer = config.replace("dims: [ 4 ]", "dims: [ 4 ] reshape { shape: [ 2, 2 ] }", 1)
        assert reason(outer, entry("m", model())) == (
            "Invalid argument: in ensemble e, ensemble tensor IN: inconsistent shape: [2,2] is inferred from "
            "model e while [4] is inferred from model m"
        )

    def test_cache_with_a_decoupled_step_is_refused(self) -> None:
        config = ensemble(step({"x": "IN"}, {"y": "OUT"}, "m"), more="response_cache { enable: true }")
        assert reason(config, entry("m", model(more=DECOUPLED))) == (
            "Invalid argument: Response Cache does not currently support model e with 'decoupled' transaction"
            " policy. Please disable the response cache."
        )

    def test_inputs_of_two_decoupled_steps_are_refused(self) -> None:
        both = step({"x": "IN"}, {"y": "P"}, "m"), step({"x": "IN"}, {"y": "Q"}, "m")
        models = entry("m", model(more=DECOUPLED)), entry("b", model("x z"))
        joined = ensemble(step({"x": "P", "z": "Q"}, {"y": "OUT"}, "b"), *both)
        text = "receives inputs originated from different decoupled models"
        assert reason(joined, *models) == f"Invalid argument: in ensemble e, step of model 'b' {text}"
        together = ensemble(*both, outputs="P Q")
        assert reason(together, *models) == f"Invalid argument: in ensemble e, step of model 'e' {text}"
        one_by_one = ensemble(
            step({"x": "IN"}, {"y": "P"}, "m"),
            step({"x": "P"}, {"y": "Q"}, "m"),
            step({"x": "P", "z": "Q"}, {"y": "OUT"}, "b"),
        )
        assert state_of(entry("e", one_by_one), *models).decoupled

    def test_batching_and_non_batching_models_mix(self) -> None:
        config = ensemble(step({"x": "IN"}, {"y": "MID"}, "a"), step({"x": "MID"}, {"y": "OUT"}, "b"))
        assert state_of(entry("e", config), A, entry("b", model(batch=8))).state is ModelState.READY

    def test_optional_input_need_not_be_mapped(self) -> None:
        config = ensemble(step({"x": "IN"}, {"y": "OUT"}, "m"))
        assert state_of(entry("e", config), entry("m", model("x z?"))).state is ModelState.READY


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    serve = FakeServe()
    serve.install(monkeypatch)
    made = Bench(tmp_path / "models", serve)
    made.add("e", CHAIN)
    made.add("a", model())
    made.add("b", model())
    return made


async def states(of: object) -> dict[str, tuple[str, str]]:
    return {name: (state, text) for name, _, state, text in await of.index()}  # type: ignore[attr-defined]


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what the server has logged; of tasks that other tests have left, asyncio tells at any time."""
    records = (record for record in caplog.records if record.name != "asyncio")
    return [record.getMessage() for record in records if record.levelname == "ERROR"]


class TestManager:
    async def test_served_without_an_application(self, bench: Bench) -> None:
        manager = await bench.start()
        assert {name: state for name, (state, _) in (await states(manager)).items()} == dict.fromkeys(
            "abe", "READY"
        )
        assert sorted(bench.serve.deployed) == ["a:1", "b:1"]

    async def test_explicit_load_loads_its_steps(self, bench: Bench) -> None:
        bench.add("other", model())
        manager = await bench.start_explicit()
        await manager.load(LoadRequest("e"))
        assert sorted(bench.serve.deployed) == ["a:1", "b:1"]
        assert (await states(manager))["e"] == ("READY", "")

    async def test_step_is_unloaded_and_loaded_again(self, bench: Bench) -> None:
        manager = await bench.start_explicit("e")
        await manager.unload("b")
        assert (await states(manager))["e"] == ("UNAVAILABLE", "unloaded")
        await manager.load(LoadRequest("b"))
        assert (await states(manager))["e"] == ("READY", "")

    async def test_unload_with_dependents_keeps_models_that_others_call(self, bench: Bench) -> None:
        bench.add("f", ensemble(step({"x": "IN"}, {"y": "OUT"}, "a")))
        manager = await bench.start_explicit()
        await manager.load(LoadRequest("e"))
        await manager.load(LoadRequest("f"))
        await manager.unload("e", True)
        found = await states(manager)
        assert [found[name][0] for name in "abef"] == ["READY", "UNAVAILABLE", "UNAVAILABLE", "READY"]

    async def test_unload_with_dependents_keeps_requested_models(self, bench: Bench) -> None:
        manager = await bench.start_explicit()
        await manager.load(LoadRequest("b"))
        await manager.load(LoadRequest("e"))
        await manager.unload("e", True)
        found = await states(manager)
        assert [found[name][0] for name in "abe"] == ["UNAVAILABLE", "READY", "UNAVAILABLE"]

    async def test_plain_unload_keeps_its_steps(self, bench: Bench) -> None:
        manager = await bench.start_explicit("e")
        await manager.unload("e")
        found = await states(manager)
        assert [found[name][0] for name in "abe"] == ["READY", "READY", "UNAVAILABLE"]

    async def test_unload_of_a_step_waits_for_the_load(self, bench: Bench) -> None:
        """A client's unload of a step waits for the load of the ensemble; a model's does not."""
        bench.serve.gates["a"] = asyncio.Event()
        manager = await bench.start_explicit()
        loading = asyncio.create_task(manager.load(LoadRequest("e")))
        await until(lambda: sorted(bench.serve.deployed) == ["a:1", "b:1"])
        await until(lambda: "b:1" in bench.serve.running)
        unloading = asyncio.create_task(manager.unload("b"))
        await asyncio.wait([unloading], timeout=0.05)
        assert not unloading.done()
        bench.serve.gates["a"].set()
        await asyncio.wait_for(loading, 60)
        await asyncio.wait_for(unloading, 60)
        found = await states(manager)
        assert [found[name][0] for name in "abe"] == ["READY", "UNAVAILABLE", "UNAVAILABLE"]
        bench.serve.gates["a"].clear()
        await manager.unload("a")
        loading = asyncio.create_task(manager.load(LoadRequest("e")))
        await until(lambda: len(bench.serve.deployed) == 4)
        await asyncio.wait_for(manager.unload("b", requester="another"), 60)
        bench.serve.gates["a"].set()
        await loading
        assert (await states(manager))["e"] == ("UNAVAILABLE", "unloaded")

    async def test_load_with_a_failed_step_reports_it(self, bench: Bench) -> None:
        bench.serve.failures["b:1"] = "Internal: no file"
        manager = await bench.start_explicit()
        with pytest.raises(InferError) as caught:
            await manager.load(LoadRequest("e"))
        assert caught.value.message.startswith(
            "load failed for model 'e': version 1 is at UNAVAILABLE state: Invalid argument: ensemble 'e' "
            "depends on 'b' which has no loaded version. Model 'b' loading failed with error:"
        )

    async def test_ensembles_that_call_each_other_do_not_deadlock(self, bench: Bench) -> None:
        bench.add("f", ensemble(step({"IN": "IN"}, {"OUT": "OUT"}, "g")))
        bench.add("g", ensemble(step({"IN": "IN"}, {"OUT": "OUT"}, "f")))
        manager = await bench.start_explicit()
        async with asyncio.timeout(60):
            answers = await asyncio.gather(
                manager.load(LoadRequest("f")), manager.load(LoadRequest("g")), return_exceptions=True
            )
        assert all("circular dependency" in str(answer) for answer in answers)

    async def test_invalid_ensemble_is_reported(self, bench: Bench) -> None:
        bench.add("bad", 'platform: "ensemble"')
        manager = await bench.start()
        state, text = (await states(manager))["bad"]
        assert state == "", "as in Triton, it could not be read"
        assert "failed to poll from model repository: ensemble scheduling must be set" in text

    async def test_step_that_is_reloaded_otherwise_breaks_the_ensemble_alone(
        self, bench: Bench, caplog: pytest.LogCaptureFixture
    ) -> None:
        bench.add("e", ensemble(step({"x": "IN"}, {"y": "OUT"}, "a"), batch=8))
        bench.add("a", model(batch=8))
        manager = await bench.start_explicit("e")
        bench.add("a", model(batch=4))
        await manager.load(LoadRequest("a"))
        text = (
            "Invalid argument: ensemble e allows maximum batch size 8, but it contains model a which only"
            " allows maximum batch size to be 4"
        )
        assert (await states(manager))["e"] == ("UNAVAILABLE", text)
        assert manager.table.all_ready, "the server is"
        assert errors(caplog) == [f"failed to load 'e' version 1: {text}"]
        bench.add("a", model(batch=8))
        await manager.load(LoadRequest("a"))
        assert (await states(manager))["e"] == ("READY", "")
        assert len(errors(caplog)) == 1

    @pytest.mark.parametrize("mode", ["none", "explicit", "poll"])
    async def test_ensemble_that_is_refused_at_the_start_is_logged(
        self, bench: Bench, caplog: pytest.LogCaptureFixture, mode: str
    ) -> None:
        bench.add("e", ensemble(step({"z": "IN"}, {"y": "OUT"}, "a")))
        bench.add("invalid", 'platform: "ensemble"')
        bench.add("good", CHAIN)
        names = ["e", "invalid", "good"] if mode == "explicit" else []
        manager = await bench.start(model_control_mode=mode, load_model=names)
        found = await states(manager)
        assert {name for name, (state, _) in found.items() if state != "READY"} == {"e", "invalid"}
        assert sorted(errors(caplog)) == [
            "Poll failed for model directory 'invalid': ensemble scheduling must be set for ensemble invalid"
            " whose platform is ensemble",
            f"failed to load 'e' version 1: {found['e'][1]}",
        ]

    async def test_restarted_manager_serves_it_from_its_first_table(self, bench: Bench) -> None:
        await bench.start_explicit("e")
        again = bench.begin(model_control_mode="explicit")
        await again.check_health()
        await started(again)
        assert (await states(again))["e"] == ("READY", "")

    async def test_restarted_manager_omits_unrouted_ensembles(self, bench: Bench) -> None:
        bench.add("f", ensemble(step({"x": "IN"}, {"y": "OUT"}, "a")))
        await bench.start_explicit("e", "f")
        bench.serve.routed = {("f", 1)}
        again = bench.begin(model_control_mode="explicit")
        await again.check_health()
        await started(again)
        found = await states(again)
        assert found["f"] == ("READY", "") and found.get("e", ("", ""))[0] != "READY"

    async def test_ensemble_replaces_a_model(self, bench: Bench) -> None:
        bench.add("m", model())
        manager = await bench.start_explicit("a", "b", "m")
        bench.add("m", CHAIN)
        await manager.load(LoadRequest("m"))
        assert (await states(manager))["m"] == ("READY", "")
        assert bench.serve.deleted == ["m:1"] and sorted(manager.lifecycle.loaded) == ["a:1", "b:1"]

    async def test_model_replaces_an_ensemble(self, bench: Bench) -> None:
        manager = await bench.start_explicit("e")
        bench.add("e", model())
        await manager.load(LoadRequest("e"))
        assert sorted(manager.table.applications) == ["a:1", "b:1", "e:1"]
        assert not bench.serve.deleted
