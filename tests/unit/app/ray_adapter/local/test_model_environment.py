"""Models find the surroundings of the server, not those of Ray's workers."""

import os

import pytest

from app.ray_adapter.local.model_environment import model_environment, model_umask, remember_surroundings

OURS = ("RAY_NEREID_UMASK", "RAY_NEREID_THREADS")


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*OURS, "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "")  # so that they are restored
        monkeypatch.delenv(name)


def worker(**more: str) -> dict[str, str]:
    """The environment of a worker of Ray that this process would start."""
    return {**os.environ, "RAY_JOB_ID": "1", "__RAY_X": "1", "SERVE_X": "1", "OMP_NUM_THREADS": "1", **more}


def test_what_ray_adds_is_no_models() -> None:
    remember_surroundings()
    found = model_environment(worker(GRPC_ENABLE_FORK_SUPPORT="0", MINE="1", MY_RAY_X="2"))
    assert found["MINE"] == "1" and found["MY_RAY_X"] == "2" and found["PATH"] == os.environ["PATH"]
    assert not [name for name in found if name.startswith(("RAY_", "__RAY", "SERVE_", "GRPC_ENABLE", "OMP_"))]


def test_threads_that_the_server_was_given_are_a_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    remember_surroundings()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # Ray's
    remember_surroundings()  # what comes first counts
    assert model_environment(worker())["OMP_NUM_THREADS"] == "3"


def test_a_cluster_that_the_server_has_joined_remembers_nothing() -> None:
    assert "OMP_NUM_THREADS" not in model_environment(worker())


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002, 0o000])
def test_the_umask_is_remembered_and_kept(umask: int) -> None:
    before = os.umask(umask)
    try:
        assert model_umask({}) == umask, "that of Ray's workers"
        remember_surroundings()
        assert os.umask(0o027) == umask
        remember_surroundings()
        assert model_umask(os.environ) == umask and os.umask(0) == 0o027
    finally:
        os.umask(before)
