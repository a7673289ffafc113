"""POLL mode: which changes are followed, and when."""

from deployments.manager.polling import Poller


def test_what_is_loaded_is_left_alone() -> None:
    poller = Poller({"m": "1"})
    assert poller.observe({"m": "1"}) == []
    assert poller.observe({"m": "1"}) == []


def test_a_change_is_followed_once_it_rests() -> None:
    poller = Poller({"m": "1", "n": "1"})
    assert poller.observe({"m": "2", "n": "1"}) == []
    assert poller.observe({"m": "3", "n": "1"}) == [], "still being written"
    assert poller.observe({"m": "3", "n": "1"}) == ["m"]
    assert poller.observe({"m": "3", "n": "1"}) == []


def test_added_and_removed() -> None:
    poller = Poller({"old": "1"})
    assert poller.observe({"new": "1"}) == []
    assert poller.observe({"new": "1"}) == ["new", "old"]
    assert poller.observe({"new": "1"}) == []


def test_replaced_between_two_looks_is_not_removed() -> None:
    poller = Poller({"m": "1"})
    assert poller.observe({}) == []
    assert poller.observe({"m": "2"}) == []
    assert poller.observe({"m": "2"}) == ["m"]


def test_changed_and_changed_back() -> None:
    poller = Poller({"m": "1"})
    assert poller.observe({"m": "2"}) == []
    assert poller.observe({"m": "1"}) == []
    assert poller.observe({"m": "1"}) == []
