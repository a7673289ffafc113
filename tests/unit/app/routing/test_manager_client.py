"""The client of the repository manager: limits, errors, and how long it waits for whom."""

import asyncio
from collections.abc import Awaitable, Generator
from types import SimpleNamespace
from typing import Any

import pytest

from app.core.errors import ErrorCode, FailureReason, InferError, not_found
from app.routing import manager_client
from app.routing.manager_client import MAX_CALLS, MAX_FILE_BYTES, LoadRequest, ManagerClient, follow
from app.routing.table import RoutingTable
from app.routing.table_bytes import encode_table
from tests.waiting import let_run, until


class Method:
    """One method of the manager behind a Serve handle."""

    def __init__(self, outcome: Any) -> None:
        self.outcome = outcome
        self.arguments: tuple[Any, ...] = ()

    def remote(self, *arguments: Any) -> Awaitable[Any]:
        self.arguments = arguments
        return self._answer()

    async def _answer(self) -> Any:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


class Handle:
    def __init__(self, outcome: Any = None) -> None:
        self.index = self.load = self.unload = self.watch = self.receive = Method(outcome)


async def test_manager_is_called_through_its_handle() -> None:
    handle = Handle([("m", "1", "READY", "")])
    client = ManagerClient(handle)
    assert await client.index() == [("m", "1", "READY", "")]
    await client.load(LoadRequest("m"))
    assert [*handle.load.arguments] == [LoadRequest("m")]
    await client.unload("m", True)
    assert [*handle.load.arguments] == ["m", True, "", ""]
    handle.load.outcome = b"table"
    assert await client.watch("me", 3) == b"table"
    assert [*handle.load.arguments] == ["me", 3]
    await client.receive("me", 4)
    assert [*handle.load.arguments] == ["me", 4]


class Response:
    """As Serve's: who stops waiting for it has not ended the call."""

    def __init__(self) -> None:
        self.cancelled = False

    def __await__(self) -> Generator[Any, None, bytes]:
        return asyncio.shield(asyncio.get_running_loop().create_future()).__await__()

    def cancel(self) -> None:
        self.cancelled = True


async def test_cancelled_watch_is_cancelled_at_the_manager() -> None:
    response = Response()
    client = ManagerClient(SimpleNamespace(watch=SimpleNamespace(remote=lambda *_: response)))
    watching = asyncio.create_task(client.watch("me", 3))
    await asyncio.sleep(0)
    assert not response.cancelled
    watching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching
    assert response.cancelled


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager_client, "_LOOK_S", 0.01)


@pytest.mark.usefixtures("quick_looks")
async def test_call_that_nobody_works_on_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    faults = ["Ray's GCS does not answer"]
    manager = SimpleNamespace(index=SimpleNamespace(remote=Response), load=SimpleNamespace(remote=Response))
    client = ManagerClient(manager, lambda: faults[0])
    text = "models cannot be loaded, unloaded, replaced or listed at present: Ray's GCS does not answer; "
    for change in (client.load(LoadRequest("m")), client.unload("m", False)):
        with pytest.raises(InferError) as refused:
            await asyncio.wait_for(change, 60)
        assert refused.value.code is ErrorCode.UNAVAILABLE
        assert refused.value.message == f"{text}nothing was changed, repeat the request later"
    with pytest.raises(InferError, match="does not answer; what was begun goes on when that is back"):
        await asyncio.wait_for(client.index(), 60)


@pytest.mark.usefixtures("quick_looks")
async def test_load_takes_as_long_as_it_takes_while_the_manager_can_work() -> None:
    answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    looks = 0

    def fault() -> str:
        """There is one for one look less than is waited, again and again."""
        nonlocal looks
        looks += 1
        return "the repository manager does not answer" if looks % manager_client._PATIENCE else ""

    manager = SimpleNamespace(demand=SimpleNamespace(remote=lambda _: answer))
    loading = asyncio.ensure_future(ManagerClient(manager, fault).demand("m"))
    await until(lambda: looks > 4 * manager_client._PATIENCE)
    assert not loading.done()
    answer.set_result(None)
    await asyncio.wait_for(loading, 60)


@pytest.mark.usefixtures("quick_looks")
async def test_call_of_a_manager_that_answers_nothing_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(manager_client, "monotonic", lambda: now)
    table = Method(b"table")
    client = ManagerClient(SimpleNamespace(index=SimpleNamespace(remote=Response), watch=table))
    asking = asyncio.create_task(client.index())
    for _ in range(3):  # it answers others meanwhile
        await asyncio.sleep(0.03)
        await client.watch("me", 3)
        now += manager_client._SILENCE_S
    await asyncio.sleep(0.03)
    assert not asking.done()
    now += 0.1
    text = "at present: the repository manager does not answer; what was begun goes on when that is back"
    with pytest.raises(InferError, match=text):
        await asyncio.wait_for(asking, 60)


async def test_manager_calls_are_limited_also_after_their_clients_left() -> None:
    answers: list[asyncio.Future[None]] = []

    def remote(*_: Any) -> asyncio.Future[None]:
        answers.append(asyncio.get_running_loop().create_future())
        return answers[-1]

    client = ManagerClient(SimpleNamespace(load=SimpleNamespace(remote=remote)))
    half = {"f": bytes(MAX_FILE_BYTES // 2)}
    for files in (half, half, *[{}] * (MAX_CALLS - 2)):
        asking = asyncio.create_task(client.load(LoadRequest("m", files=files)))
        await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    with pytest.raises(InferError, match="too many requests to the repository manager"):
        await client.load(LoadRequest("m"))
    answers[-1].set_exception(not_found("no such model"))
    await let_run()
    with pytest.raises(InferError, match="too many requests to the repository manager"):
        await client.load(LoadRequest("m", files={"f": b"1"}))
    asking = asyncio.create_task(client.load(LoadRequest("m")))
    await asyncio.sleep(0)
    answers[-1].set_result(None)
    await asking


class Derived(InferError, RuntimeError):
    """As Serve makes them: of our error and its own."""


class Wrapped(Exception):
    def __init__(self, cause: Exception) -> None:
        super().__init__("a long traceback")
        self.cause = cause


ERRORS = [
    (not_found("no such model"), ErrorCode.NOT_FOUND, "no such model"),
    (Derived(ErrorCode.NOT_FOUND, "no such model"), ErrorCode.NOT_FOUND, "no such model"),
    (Wrapped(not_found("no such model")), ErrorCode.NOT_FOUND, "no such model"),
    (
        Wrapped(KeyError("a secret")),
        ErrorCode.UNAVAILABLE,
        "the repository manager does not answer: Wrapped",
    ),
    (
        RuntimeError("a secret"),
        ErrorCode.UNAVAILABLE,
        "the repository manager does not answer: RuntimeError",
    ),
]


@pytest.mark.parametrize(("error", "code", "text"), ERRORS)
async def test_errors_of_the_manager(error: Exception, code: ErrorCode, text: str) -> None:
    with pytest.raises(InferError) as caught:
        await ManagerClient(Handle(error)).index()
    assert (caught.value.code, caught.value.message) == (code, text)
    assert type(caught.value) is InferError
    assert caught.value.reason is FailureReason.OTHER


class OneTable:
    """The method `watch` of a manager with a single table."""

    def __init__(self) -> None:
        self.watched: list[int] = []

    async def remote(self, _: str, applied: int) -> bytes:
        self.watched.append(applied)
        return encode_table(RoutingTable(number=7)) if applied < 7 else await asyncio.Future()


class SlowUser:
    """Applies a table until it is told to end."""

    def __init__(self) -> None:
        self.table = RoutingTable()
        self.connected = asyncio.Event()

    async def apply(self, table: RoutingTable) -> None:
        await self.connected.wait()
        self.table = table


async def test_receipt_is_confirmed_while_a_table_is_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager_client, "_CONFIRM_S", 0.01)
    user, received, tables = SlowUser(), [], OneTable()

    async def receive(ingress: str, number: int) -> None:
        received.append((ingress, number))

    handle = SimpleNamespace(watch=tables, receive=SimpleNamespace(remote=receive))
    following = asyncio.create_task(follow(ManagerClient(handle), user, "me", lambda _: None))
    await until(lambda: len(received) > 3)
    assert tables.watched == [0]
    user.connected.set()
    await until(lambda: tables.watched == [0, 7])
    confirmed = len(received)
    await asyncio.sleep(0.05)
    assert received == [("me", 7)] * confirmed
    following.cancel()


async def test_table_is_applied_where_the_manager_hears_and_does_not_answer() -> None:
    user = SlowUser()
    user.connected.set()
    handle = SimpleNamespace(watch=OneTable(), receive=SimpleNamespace(remote=lambda *_: Response()))
    following = asyncio.create_task(follow(ManagerClient(handle), user, "me", lambda _: None))
    await until(lambda: user.table.number == 7)
    following.cancel()
