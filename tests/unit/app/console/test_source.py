"""What the console keeps of one client's view of the server, and when it asks."""

import asyncio
import json
from time import monotonic
from typing import Any

import pytest

from app.console import source
from app.console.source import Refused, Source
from tests.waiting import let_run

BOUNDS = [0.001, 0.01]


def version(name: str, ok: int | None = 0, at: float = 0.0, **more: Any) -> dict[str, Any]:
    figures = None
    if ok is not None:
        counters = dict.fromkeys(("failed", "queue_ns", "compute_ns", "rows", "executions"), 0)
        figures = {"at": at, "ok": ok, **counters, "pending": 0, "restarts": 0, "buckets": {"0": ok}}
    about = {"state": "READY", "word": "Ready", "look": "good", "reason": "", "ready_at": 5.0, "load_s": 1.5}
    return {"name": name, "version": "1", **about, "figures": figures, **more}


class Server:
    """Answers the overview with what the test says."""

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.asked: list[str] = []
        self.metrics: dict[str, Any] = {}

    async def ask(self, path: str) -> bytes:
        if path == "/v2/nereid/metrics":
            return json.dumps({"process": "p", "metrics": self.metrics}).encode()
        self.asked.append(path)
        answer = self.answers.pop(0) if self.answers else OSError("gone")
        if isinstance(answer, Exception):
            raise answer
        return json.dumps(answer).encode()

    def tell(self, *versions: dict[str, Any], names: list[str] | None = None) -> None:
        listed = None if names is None else [[name, "1"] for name in names]
        rest = {"at": 0.0, "ready": True, "bounds_s": BOUNDS, "versions": versions, "names": listed}
        self.answers.append({"cursor": f"e.{len(self.answers)}", **rest})


def viewed(server: Server) -> Source:
    """Return a source as if a page were open; the test looks at its pace."""
    looks = Source(server.ask)
    looks.viewed = monotonic()
    return looks


def test_rows_are_told_once_and_versions_that_rest_go_to_zero() -> None:
    async def scenario() -> None:
        server = Server()
        looks = viewed(server)
        server.tell(version("a", 10, 1.0), version("b"), names=["a", "b"])
        await looks.look()
        first = await looks.live("")
        assert sorted(row["id"] for row in first["models"]) == ["a:1", "b:1"] and len(first["ids"]) == 2
        server.tell(version("a", 30, 2.0))
        await looks.look()
        second = await looks.live(first["cursor"])
        assert [(row["id"], row["rate"]) for row in second["models"]] == [("a:1", 20.0)]
        assert second["ids"] is None and second["server"]["rate"] == 20.0
        server.tell()
        await looks.look()
        third = await looks.live(second["cursor"])
        assert [(row["id"], row["rate"]) for row in third["models"]] == [("a:1", 0.0)]
        assert (await looks.live(third["cursor"]))["models"] == []

    asyncio.run(scenario())


def test_versions_that_are_gone_and_tokens_that_are_revoked_leave_nothing() -> None:
    async def scenario() -> None:
        server = Server()
        looks = viewed(server)
        server.tell(version("a"), version("b"), names=["a", "b"])
        server.tell(names=["b"])
        server.answers.append(Refused(401, "revoked"))
        await looks.look()
        await looks.look()
        assert (await looks.live(""))["ids"] == ["b:1"]
        await looks.look()
        found = await looks.live("")
        assert (found["ids"], found["models"], found["status"], looks.events()) == ([], [], 401, [])

    asyncio.run(scenario())


def test_server_that_is_back_is_asked_for_everything() -> None:
    async def scenario() -> None:
        server = Server()
        looks = viewed(server)
        server.tell(version("a", 10, 1.0), names=["a"])
        await looks.look()
        await looks.look()
        assert "does not answer: gone" in looks.problem
        server.tell(version("a", 3, 9.0), names=["a"])
        await looks.look()
        assert looks.problem == "" and server.asked[-1].endswith("after=")
        assert (await looks.live(""))["models"][0]["rate"] == 0  # its counters began anew

    asyncio.run(scenario())


def test_a_page_that_opens_is_told_what_is_asked_from_then_on() -> None:
    async def scenario() -> None:
        server, asking, answered = Server(), asyncio.Event(), asyncio.Event()
        server.tell(version("a"), names=["a"])

        async def ask(path: str) -> bytes:
            found = await server.ask(path)
            asking.set()
            await answered.wait()
            return found

        looks = Source(ask)
        running = asyncio.create_task(looks.run())
        await asking.wait()  # the server has answered, and ends before it is heard
        page = asyncio.create_task(looks.live(""))
        await let_run()
        answered.set()
        assert "does not answer: gone" in (await page)["problem"]
        running.cancel()

    asyncio.run(scenario())


def test_changes_of_states_are_remembered() -> None:
    async def scenario() -> None:
        server = Server()
        looks = viewed(server)
        failed: dict[str, Any] = {
            "state": "UNAVAILABLE",
            "word": "Not ready",
            "look": "bad",
            "reason": "no file",
        }
        server.tell(version("a"), version("never", None, **failed, ready_at=0.0), names=["a", "never"])
        server.tell(version("a", None, **failed))
        server.tell(version("a", ready_at=9.0, load_s=2.5))
        server.tell(version("a", 5, ready_at=9.0, load_s=2.5))
        for _ in range(4):
            await looks.look()
        found = [(each["word"], each["reason"], each["load_s"]) for each in looks.events("a")]
        assert found == [("Ready", "", 2.5), ("Not ready", "no file", 1.5), ("Ready", "", 1.5)]
        assert looks.events("never") == []

    asyncio.run(scenario())


@pytest.mark.parametrize("idles", [True, False])
def test_server_is_asked_slowly_or_not_at_all_while_nobody_looks(
    idles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "EVERY_S", 0.001)
    monkeypatch.setattr(source, "SLOWLY_S", 0.01)
    monkeypatch.setattr(source, "VIEWED_S", 1000.0)

    async def scenario() -> None:
        server = Server()
        looks = Source(server.ask, lambda: idles)
        looks.viewed = -1e9
        task = asyncio.create_task(looks.run())
        await asyncio.sleep(0.1)
        unseen = len(server.asked)
        assert unseen == 1 or idles
        await looks.live("")
        while len(server.asked) < unseen + 5:
            await asyncio.sleep(0.001)
        task.cancel()

    asyncio.run(scenario())


def test_alerts_are_told_with_the_rows() -> None:
    async def scenario() -> None:
        server = Server()
        server.metrics = {"nereid_drift_alarm": [{"model": "a", "version": "1", "value": 1}]}
        looks = viewed(server)
        server.tell(version("a"), names=["a"])
        await looks.look()
        (alert,) = (await looks.live(""))["alerts"]
        assert (alert["name"], alert["page"], alert["model"]) == ("NereidDrift", "drift", "a")

    asyncio.run(scenario())
