"""What other threads have the main thread do."""

import threading
from collections.abc import Callable

import pytest

from app.core.system import main_thread
from app.core.system.main_thread import MainThread


def run_beside(main: MainThread, work: Callable[[], object]) -> None:
    """Do some work on another thread while this one, the main thread, runs what it is given."""
    raised: list[BaseException] = []

    def other() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)
        finally:
            main.stop()

    thread = threading.Thread(target=other, daemon=True)
    thread.start()
    main.run()
    thread.join(60)
    if raised:
        raise raised[0]


def is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


def fail() -> None:
    raise ValueError("no")


def end() -> None:
    raise SystemExit(3)


def test_a_call_returns_and_raises_what_the_work_does() -> None:
    main = MainThread()

    def work() -> None:
        assert main.call(is_main)
        with pytest.raises(ValueError, match="no"):
            main.call(fail)
        with pytest.raises(SystemExit):
            main.call(end)
        assert main.call(is_main), "it goes on"

    run_beside(main, work)


def test_calls_are_made_one_after_the_other() -> None:
    main, seen = MainThread(), list[int]()

    def work() -> None:
        threads = [threading.Thread(target=main.call, args=(lambda: seen.append(1),)) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)

    run_beside(main, work)
    assert len(seen) == 20


def test_one_claim_at_a_time() -> None:
    main, go, seen = MainThread(), threading.Event(), list[bool]()

    def long() -> None:
        go.wait(60)
        seen.append(is_main())

    def work() -> None:
        claim = main.claim(long)
        assert claim is not None and main.claim(long) is None
        assert not claim.is_alive()
        claim.join(0)  # as of a thread that was not started
        claim.start()
        assert claim.is_alive()
        claim.join(0)
        assert claim.is_alive() and main.claim(long) is None
        assert not main.call(is_main), "called here: the main thread may be taken for as long as a model is"
        go.set()
        claim.join(60)
        assert not claim.is_alive() and seen == [True]
        again = main.claim(long)
        assert again is not None
        again.start()
        again.join(60)

    run_beside(main, work)
    assert seen == [True, True]


def test_a_claim_that_raises_ends() -> None:
    main = MainThread()
    claim = main.claim(end)
    assert claim is not None
    claim.start()
    with pytest.raises(SystemExit):
        main.run()
    assert not claim.is_alive() and main.claim(end) is not None


def test_nothing_waits_for_a_main_thread_that_has_stopped() -> None:
    main, seen = MainThread(), list[int]()
    main.stop()
    main.run()
    run_here = threading.Thread(target=main.call, args=(lambda: seen.append(1),), daemon=True)
    run_here.start()
    run_here.join(60)
    assert seen == [1] and main.claim(is_main) is None


def test_a_call_by_the_main_thread_is_made_at_once() -> None:
    assert MainThread().call(is_main)


def test_threads_where_none_is_offered() -> None:
    assert main_thread._current is None
    thread = main_thread.new_thread(fail, "a name")
    assert isinstance(thread, threading.Thread) and thread.daemon and thread.name == "a name"
    assert main_thread.call_on_main(threading.get_ident) == threading.get_ident()


def test_threads_where_it_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main_thread, "_current", None)
    main, seen = MainThread(), list[bool]()
    main_thread.offer(main)

    def work() -> None:
        assert main_thread.call_on_main(is_main)
        threads = [main_thread.new_thread(lambda: seen.append(is_main()), "m") for _ in range(2)]
        assert [isinstance(each, threading.Thread) for each in threads] == [False, True]
        for thread in threads:
            thread.start()
            thread.join(60)

    run_beside(main, work)
    assert seen == [True, False]
