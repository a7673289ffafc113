import ast
import asyncio
import gc
import threading
import time
from itertools import pairwise

import pytest

from app.core.system.tasks import InTurn, Tasks, by_size
from tests.unit.test_imports import ROOT


async def test_a_task_that_nobody_else_keeps_ends() -> None:
    tasks, ended = Tasks(), asyncio.Event()

    async def work() -> None:
        await asyncio.get_running_loop().create_future()  # which only the task refers to

    async def other() -> None:
        await asyncio.sleep(0)
        ended.set()

    tasks.start(work())
    tasks.start(other())
    gc.collect()
    await ended.wait()
    await asyncio.sleep(0)
    assert len(tasks) == 1
    await tasks.cancel()
    assert not tasks


async def test_the_result_is_that_of_the_task() -> None:
    async def work(fails: bool) -> int:
        if fails:
            raise ValueError("no")
        return 3

    tasks = Tasks()
    assert await tasks.start(work(fails=False)) == 3
    with pytest.raises(ValueError, match="no"):
        await tasks.start(work(fails=True))


def is_lost(node: ast.AST) -> bool:
    """Whether a statement makes a task that nothing refers to afterwards."""
    made = node.value if isinstance(node, ast.Expr) else None
    if isinstance(made, ast.Call) and ast.unparse(made.func).endswith(".add_done_callback"):
        made = made.func.value if isinstance(made.func, ast.Attribute) else None
    called = ast.unparse(made.func) if isinstance(made, ast.Call) else ""
    return called.endswith(("create_task", "ensure_future")) and "group" not in called


def test_every_task_is_kept() -> None:
    """An event loop may lose one that nobody keeps: `Tasks.start` does."""
    assert is_lost(ast.parse("loop.create_task(work()).add_done_callback(done)").body[0])
    lost = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for tree in ("app", "backends", "deployments", "nereid", "client/nereid_client")
        for path in (ROOT / tree).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if is_lost(node) and isinstance(node, ast.Expr)
    ]
    assert lost == []


async def test_work_on_many_bytes_leaves_the_event_loop() -> None:
    here = threading.get_ident()
    assert await by_size(1 << 10, threading.get_ident) == here
    assert await by_size(1 << 20, threading.get_ident) != here


async def test_long_work_is_done_in_turn_with_pauses() -> None:
    long, running, most = 1 << 20, 0, 0
    in_turn = InTurn("test")

    def work() -> tuple[str, float]:
        nonlocal running, most
        began = time.monotonic()
        running += 1
        most = max(most, running)
        ends = time.thread_time() + 0.02
        while time.thread_time() < ends:
            pass
        running -= 1
        return threading.current_thread().name, began

    done = await asyncio.gather(*(in_turn.by_size(long, work) for _ in range(3)))
    assert most == 1
    assert {name for name, _ in done} == {"test_0"}
    begun = [began for _, began in done]
    assert min(after - before for before, after in pairwise(begun)) >= 0.04
    assert (await in_turn.by_size(10, work))[0] == threading.main_thread().name


async def test_what_long_work_raises_is_raised() -> None:
    def fails() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await InTurn("test").by_size(1 << 20, fails)
