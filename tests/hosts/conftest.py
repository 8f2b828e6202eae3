"""Real engines and machines for the tests marked `hosts`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hosts.dockerd import Dockerd, private_dockerd


@pytest.fixture(scope="session")
def dockerd() -> Iterator[Dockerd]:
    """A Docker daemon of this session's own, see `Dockerd`: `.socket`, `.env`, `.run(*argv)`.

    It has the images `ekvi-test/busybox:1` and `ekvi-test/python:1`, takes `--gpus all` and has AMD's devices.
    """
    with private_dockerd() as daemon:
        yield daemon
