"""Real engines and machines for the tests marked `hosts`."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import pytest

from cockpit.hosts import Host, connect
from tests.hosts.dockerd import Dockerd, private_dockerd
from tests.hosts.machines import LOCK, Machines, two_machines
from tests.hosts.namespace import locked
from tests.hosts.sshd import Sshd, sshd


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """Sessions that need the two machines take turns; they wait here, where no test's time is running."""
    wanted = any("machines" in getattr(item, "fixturenames", ()) for item in session.items)
    if not wanted or session.config.option.collectonly:
        return (yield)
    with locked(LOCK):
        return (yield)


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
