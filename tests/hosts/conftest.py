"""Real engines and machines for the tests marked `hosts`."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cockpit.hosts import Host, connect
from tests.hosts.dockerd import Dockerd, private_dockerd
from tests.hosts.machines import LOCK, Machines, two_machines
from tests.hosts.namespace import locked
from tests.hosts.sshd import Sshd, sshd
from tests.workers import check_group

_TURN = pytest.StashKey[ExitStack]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """There is one pair of machines: of several workers one takes all the tests that need them."""
    check_group(items, "running_machines", "machines")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Sessions that need the two machines take turns; they wait here, where no test's time is running."""
    stash = item.session.stash
    if "running_machines" in getattr(item, "fixturenames", ()) and _TURN not in stash:
        stash[_TURN] = ExitStack()
        stash[_TURN].enter_context(locked(LOCK))
    return (yield)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """The next session's turn: the machines of this one are gone."""
    if _TURN in session.stash:
        session.stash[_TURN].close()


@pytest.fixture(scope="module")
def server() -> Iterator[Sshd]:
    """An sshd that the tests of a file share."""
    with tempfile.TemporaryDirectory() as folder, sshd(Path(folder, "sshd")) as running:
        yield running


@pytest.fixture(params=["asyncssh", "openssh"])
async def host(request: pytest.FixtureRequest, server: Sshd) -> AsyncIterator[Host]:
    """That server, over each transport."""
    made = connect(server.access(transport=request.param))
    yield made
    await made.close()


@pytest.fixture
async def plain(server: Sshd) -> AsyncIterator[Host]:
    """That server, over asyncssh."""
    made = connect(server.access())
    yield made
    await made.close()


@pytest.fixture(scope="session")
def dockerd() -> Iterator[Dockerd]:
    """A Docker daemon of this session's own, see `Dockerd`: `.socket`, `.env`, `.run(*argv)`.

    It has the images `ekvi-test/busybox:1` and `ekvi-test/python:1`, takes `--gpus all` and has AMD's devices.
    """
    with private_dockerd() as daemon:
        yield daemon


@pytest.fixture(scope="session")
def running_machines() -> Iterator[Machines]:
    """The two machines, as long as the session lasts; tests take `machines`."""
    with two_machines() as machines:
        yield machines


@pytest.fixture
def machines(running_machines: Machines) -> Iterator[Machines]:
    """cuda-host and rocm-host, each as new: see `Machines` and `Machine`."""
    for machine in running_machines.both:
        machine.settle()
    yield running_machines
    for machine in running_machines.both:
        machine.settle()
