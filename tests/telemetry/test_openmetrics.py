"""What a scraper and a server may do to each other through `--serve`: nothing."""

from __future__ import annotations

import json
import socket
import struct
import time
import urllib.request
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families as plain

from cockpit.core.gpu import MachineNow
from cockpit.telemetry import openmetrics
from cockpit.telemetry.openmetrics import Server, serve

strict: Callable[[str], Any] = openmetrics_parser.text_string_to_metric_families
_EVIL = r"a\"b\\c\nd\u001b[31m\ud800\u202e"


@pytest.fixture
def served() -> Iterator[Server]:
    """A server of whose GPUs the first has a hostile name and values that are none, and the second is well."""
    machine: Any = SimpleNamespace(name="one", state="live", now=MachineNow())
    hello = '{"type":"hello","vendor":"EVIL","devices":[{"index":0,"uuid":"EVIL","model":"EVIL"},{"index":1}]}'
    first = '{"index":0,"util":NaN,"power_w":1e400,"clk_sm_mhz":%s,"temp_hot_c":61}'.replace("%s", "9" * 400)
    tick = f'{{"type":"tick","t_mono_ns":1,"t_wall_ns":1,"devices":[{first},{{"index":1,"util":0.5}}]}}'
    for line in (hello.replace("EVIL", _EVIL), tick):
        assert machine.now.take(json.loads(line), time.monotonic())
    with serve([machine], "127.0.0.1", 0) as server:
        yield server


def scrape(port: int, accept: str = "text/plain") -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return str(answer.read().decode())


def answer(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10)


@pytest.mark.parametrize(
    ("accept", "parse"), [("text/plain", plain), ("application/openmetrics-text; version=1.0.0", strict)]
)
def test_whatever_a_server_says_of_its_gpus_can_be_scraped(served: Server, accept: str, parse: Any) -> None:
    families = {family.name: family for family in parse(scrape(served.port, accept))}
    (util,) = families["ekvi_gpu_utilization_ratio"].samples
    (temp,) = families["ekvi_gpu_temperature_hotspot_celsius"].samples
    assert (util.labels["gpu"], util.value) == ("1", 0.5)
    assert (temp.labels["gpu"], temp.value) == ("0", 61)
    assert temp.labels["model"] == temp.labels["uuid"] == temp.labels["vendor"] == 'a"b\\c\nd'
    assert not families["ekvi_gpu_power_watts"].samples
    assert not families["ekvi_gpu_clock_sm_megahertz"].samples


@pytest.mark.parametrize(
    "sent", [b"", b"GET /metr", b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\xff\n"]
)
def test_a_scraper_that_hangs_up_leaves_no_words_on_the_terminal(
    served: Server, sent: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    with answer(served.port) as scraper:
        scraper.sendall(sent)
        scraper.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # reset, not closed
    assert "ekvi_server_up" in scrape(served.port)
    assert capfd.readouterr() == ("", "")


def test_a_scraper_that_says_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openmetrics, "_PATIENCE_S", 0.2)
    with serve([], "127.0.0.1", 0) as server, answer(server.port) as scraper:
        assert scraper.recv(1) == b""
