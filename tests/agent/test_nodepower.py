"""What the whole machine draws: by a stand-in ipmitool that prints as the real one does, and over real HTTPS."""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from runners.agent import nodepower
from runners.agent.gpu.source import FAILED, NO_PERMISSION, NOT_FOUND, NOT_SUPPORTED, SourceError
from runners.agent.nodepower import NodePower, Redfish
from tests.agent.support import until

DCMI = """
    Instantaneous power reading:                   {watts} Watts
    Minimum during sampling period:                 10 Watts
    Maximum during sampling period:               4100 Watts
    Average power reading over sample period:     3900 Watts
    IPMI timestamp:                           01/31/26 09:30:00 UTC    Sampling period:       00000001 Seconds.
    Power reading state is:                   {state}


"""
SDR = """Current 1        | 6Ah | ok  | 10.1 | 1.40 Amps
PSU1 Power       | 6Bh | ok  | 10.1 | 320 Watts
Pwr Consumption  | 77h | {state}  |  7.1 | {reading}
"""


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of an `ipmitool` that prints the files dcmi and sdr of it, or says what `refusal` holds."""
    script = tmp_path / "ipmitool"
    script.write_text(
        f'#!/bin/sh\ncd {tmp_path}\necho "$*" >> calls\n[ -f refusal ] && {{ cat refusal >&2; exit 1; }}\n'
        '[ -f hang ] && exec sleep 60\n[ -f "$1" ] && exec cat "$1"\nexit 1\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def _refused(read: Any) -> SourceError:
    with pytest.raises(SourceError) as caught:
        read()
    return caught.value


def test_dcmi_tells_the_power(tool: Path) -> None:
    (tool / "dcmi").write_text(DCMI.format(watts=4012, state="activated"))
    assert nodepower.ipmi() == 4012.0
    assert (tool / "calls").read_text() == "dcmi power reading\n"


@pytest.mark.parametrize(("watts", "state"), [(0, "activated"), (300, "deactivated")])
def test_a_reading_that_is_none_leaves_it_to_the_sensors(tool: Path, watts: int, state: str) -> None:
    (tool / "dcmi").write_text(DCMI.format(watts=watts, state=state))
    (tool / "sdr").write_text(SDR.format(state="ok", reading="644 Watts"))
    assert nodepower.ipmi() == 644.0
    assert (tool / "calls").read_text().splitlines() == ["dcmi power reading", "sdr type Current"]


@pytest.mark.parametrize(("state", "reading"), [("ns", "No Reading"), ("cr", "644 Watts"), ("ok", "0 Watts")])
def test_no_sensor_of_the_whole_machine_is_none_and_never_a_supply_s(tool: Path, state: str, reading: str) -> None:
    (tool / "sdr").write_text(SDR.format(state=state, reading=reading))
    assert _refused(nodepower.ipmi).code == NOT_SUPPORTED


def test_no_device_and_no_program_say_what_helps(tool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tool / "refusal").write_text("Could not open device at /dev/ipmi0 or /dev/ipmi/0 or /dev/ipmidev/0\n")
    error = _refused(nodepower.ipmi)
    assert (error.code, "root" in error.text) == (NO_PERMISSION, True)
    monkeypatch.setenv("PATH", str(tool / "nowhere"))
    error = _refused(nodepower.ipmi)
    assert (error.code, "install it" in error.text) == (NOT_FOUND, True)


def test_a_tool_that_hangs_is_ended(tool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodepower, "TIMEOUT_S", 0.2)
    (tool / "hang").touch()
    assert "did not answer within 0.2 s" in _refused(nodepower.ipmi).text


# --- Redfish

CHASSIS = "/redfish/v1/Chassis"
POWER = {"PowerControl": [{"Name": "Server", "PowerConsumedWatts": 3950}, {"Name": "CPU", "PowerConsumedWatts": 400}]}


class Controller:
    """A controller's HTTPS server: `tree` holds what it answers by path, `asked` what it was asked."""

    def __init__(self, folder: Path) -> None:
        key, cert = folder / "key.pem", folder / "cert.pem"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
             "-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(cert)],
            check=True, capture_output=True,
        )  # fmt: skip
        self.cert = str(cert)
        self.tree: dict[str, Any] = {CHASSIS: {"Members": [{"@odata.id": f"{CHASSIS}/1"}]}}
        self.asked: list[str] = []
        self.connections = 0
        self.login = "Basic " + base64.b64encode(b"eye:a word").decode()
        there = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 5  # of a connection that its test left open

            def setup(self) -> None:
                there.connections += 1
                super().setup()

            def do_GET(self) -> None:
                there.asked.append(self.path)
                body = there.tree.get(self.path)
                status = 200 if body is not None else 404
                if self.headers["Authorization"] != there.login:
                    status = 401
                elif isinstance(body, str):
                    status = 308
                data = json.dumps(body).encode()
                self.send_response(status)
                if status == 308:
                    self.send_header("Location", str(body))
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.url = f"https://localhost:{self.server.server_port}"
        self.secret = folder / "BMC_PASSWORD"
        self.secret.write_text("a word")
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def chassis(self, name: str, kind: str = "RackMount", **links: Any) -> None:
        """A chassis with these links."""
        self.tree[f"{CHASSIS}/{name}"] = {"ChassisType": kind, **links}
        members = self.tree[CHASSIS]["Members"]
        if {"@odata.id": f"{CHASSIS}/{name}"} not in members:
            members.append({"@odata.id": f"{CHASSIS}/{name}"})

    def link(self, path: str, body: Any) -> dict[str, str]:
        self.tree[path] = body
        return {"@odata.id": path}

    def redfish(self, path: str = "", *, insecure: bool = True, user: str = "eye") -> Redfish:
        return Redfish(self.url + path, user, str(self.secret), insecure)


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    made = Controller(tmp_path)
    made.chassis("1", Power=made.link(f"{CHASSIS}/1/Power", POWER))
    try:
        yield made
    finally:
        made.server.shutdown()
        made.server.server_close()


def test_power_control_tells_the_chassis_on_one_connection(controller: Controller) -> None:
    redfish = controller.redfish()
    assert [redfish.read(), redfish.read()] == [3950.0, 3950.0]
    assert controller.connections == 1
    assert controller.asked[-1] == f"{CHASSIS}/1/Power"
    assert len(controller.asked) == 5, "the tree is searched once"
    redfish.close()


def test_newer_controllers_tell_it_as_environment_metrics(controller: Controller) -> None:
    metrics = controller.link(f"{CHASSIS}/1/EnvironmentMetrics", {"PowerWatts": {"Reading": 812.5}})
    controller.chassis("1", EnvironmentMetrics=metrics)
    redfish = controller.redfish()
    assert redfish.read() == 812.5
    redfish.close()


def test_parts_of_a_chassis_are_not_the_machine(controller: Controller) -> None:
    gpu = controller.link(f"{CHASSIS}/GPU1/EnvironmentMetrics", {"PowerWatts": {"Reading": 700}})
    controller.chassis("GPU1", "Module", EnvironmentMetrics=gpu)
    controller.chassis("Tray", "Sled", EnvironmentMetrics=gpu, Links={"ContainedBy": {"@odata.id": f"{CHASSIS}/1"}})
    redfish = controller.redfish()
    assert redfish.read() == 3950.0
    redfish.close()


def test_several_machines_are_not_guessed_from(controller: Controller) -> None:
    controller.chassis("2", Power=controller.link(f"{CHASSIS}/2/Power", POWER))
    error = _refused(controller.redfish().read)
    assert (error.code, "name one in the url" in error.text) == (FAILED, True)
    redfish = controller.redfish(f"{CHASSIS}/2/")
    assert redfish.read() == 3950.0
    redfish.close()


@pytest.mark.parametrize("reading", [None, 0, "N/A", True])
def test_what_is_no_reading_is_none(controller: Controller, reading: Any) -> None:
    controller.tree[f"{CHASSIS}/1/Power"] = {"PowerControl": [{"PowerConsumedWatts": reading}]}
    assert _refused(controller.redfish().read).code == NOT_SUPPORTED


def test_a_wrong_password_an_unknown_certificate_and_no_answer_say_so(controller: Controller) -> None:
    error = _refused(controller.redfish(user="nobody").read)
    assert (error.code, "refuses the user nobody" in error.text) == (NO_PERMISSION, True)
    assert "CERTIFICATE_VERIFY_FAILED" in _refused(controller.redfish(insecure=False).read).text
    assert _refused(Redfish("https://localhost:1", "eye", str(controller.secret)).read).code == FAILED
    assert "a word" not in error.text


def test_a_certificate_that_is_known_is_checked(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", controller.cert)
    redfish = controller.redfish(insecure=False)
    assert redfish.read() == 3950.0
    redfish.close()


def test_a_login_follows_a_slash_and_no_other_host(controller: Controller) -> None:
    controller.tree[f"{CHASSIS}/"] = controller.tree[CHASSIS]
    controller.tree[CHASSIS] = f"{CHASSIS}/"
    redfish = controller.redfish()
    assert redfish.read() == 3950.0
    redfish.close()
    controller.tree[CHASSIS] = "https://elsewhere.example/redfish/v1/Chassis"
    assert "answers 308" in _refused(controller.redfish().read).text


# --- the thread


def test_readings_come_once_each_and_failures_say_so_once() -> None:
    answers: list[float | None] = [500.0]
    asked = threading.Event()

    def read() -> float:
        asked.set()
        if answers[0] is None:
            raise SourceError(FAILED, "no answer")
        return answers[0]

    power = NodePower("ipmi", read, each_s=0.01)
    power.start()
    try:
        found = until(power.fresh, "a reading")
        assert found == {"node_power_w": 500.0, "node_power_src": "ipmi"}
        assert power.errs() == []
        answers[0] = None
        until(lambda: power.fresh().get("node_power_w", 1) is None, "no reading")
        (line,) = until(power.errs, "an err line")
        assert (line["source"], line["code"], line["text"], line["field"]) == (
            "ipmi",
            FAILED,
            "no answer",
            "node_power_w",
        )
        answers[0] = 501.0
        assert until(power.errs, "it is back")[0]["code"] == "recovered"
    finally:
        power.stop()


def test_a_reading_that_hangs_is_the_only_one_and_no_later_run_hears_of_it() -> None:
    hold, hangs, closed = threading.Event(), threading.Event(), threading.Event()

    def read() -> float:
        if not hold.is_set():
            hangs.set()
            hold.wait()
            raise SourceError(FAILED, "the controller hung up")
        return 7.0

    def readers() -> int:
        return sum(thread.name == "node power" for thread in threading.enumerate())

    power = NodePower("redfish", read, each_s=0.01, close=closed.set)
    for _ in range(20):
        power.start()
        assert hangs.wait(10)
        power.stop()
    until(lambda: readers() == 1, "those that only waited to go")
    assert not closed.is_set()
    power.start()
    hold.set()
    found = until(power.fresh, "a value")
    assert found == {"node_power_w": 7.0, "node_power_src": "redfish"}
    assert power.errs() == []
    until(lambda: power._values, "one more, which nobody asks for")
    power.stop()
    until(lambda: readers() == 0, "its thread to end")
    hold.clear()
    power.start()
    assert power.fresh() == {}, "that is a power of long ago"
    power.stop()
    hold.set()
    assert closed.is_set()
