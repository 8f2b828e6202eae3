"""What the whole machine draws, as its baseboard controller (BMC) says it: by IPMI from within, or by Redfish.

Asked at most every two seconds, in a thread of its own with timeouts: controllers are slow, and some never answer.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Callable, Deque, Dict, List, Optional, Tuple

from .gpu.frames import err_line
from .gpu.source import FAILED, NO_PERMISSION, NOT_FOUND, NOT_SUPPORTED, SourceError

if TYPE_CHECKING:
    import http.client

EACH_S, SLOWEST_S = 2.0, 30.0
TIMEOUT_S = 5.0
TURN_S = 1.0
_ANSWER_BY = 1 << 20
# Sensors that speak of the whole machine; those of one supply or one board do not.
_WHOLE = re.compile(r"(pwr consumption|system level|power meter|(sys|system|node|total)[ _]?(power|pwr))", re.I)
_DCMI = re.compile(r"Instantaneous power reading:\s*(\d+) Watts")
_STATE = re.compile(r"Power reading state is:\s*(\w+)")


class NodePower:
    """Polls one sensor while it is started. `source` is ipmi or redfish, `read` gives watts or raises SourceError.

    `close` is called in the end.
    """

    def __init__(
        self,
        source: str,
        read: Callable[[], float],
        each_s: float = EACH_S,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self.source = source
        self._read = read
        self._close = close
        self._each_s = each_s
        self._values: Deque[Optional[float]] = deque(maxlen=1)
        self._errs: Deque[Dict[str, Any]] = deque(maxlen=10)
        self._well: Optional[bool] = None
        self._end = threading.Event()
        self._turn = threading.Lock()  # held by the one thread that reads

    def start(self) -> None:
        """Ask, in a thread."""
        self._end = threading.Event()
        self._values.clear()  # what nobody asked for any more is old now
        self._errs.clear()
        threading.Thread(target=self._work, args=(self._end,), name="node power", daemon=True).start()

    def stop(self) -> None:
        """Ask no more; does not wait."""
        self._end.set()

    def fresh(self) -> Dict[str, Any]:
        """The values of a new reading: node_power_w (W, None where it failed) and node_power_src; else nothing."""
        if not self._values:
            return {}
        return {"node_power_w": self._values.popleft(), "node_power_src": self.source}

    def errs(self) -> List[Dict[str, Any]]:
        """The err lines since the last call: one when readings fail, one when they come again."""
        found = []
        while self._errs:
            found.append(self._errs.popleft())
        return found

    def _work(self, end: threading.Event) -> None:
        while not self._turn.acquire(timeout=TURN_S):  # one that was stopped may hang in its last reading
            if end.is_set():
                return
        try:
            self._well = None
            self._poll(end)
        finally:
            self._close()
            self._turn.release()

    def _poll(self, end: threading.Event) -> None:
        pause_s = self._each_s
        while not end.is_set():
            begun = time.monotonic()
            watts, code, text = self._reading()
            if end.is_set():
                return  # what it says now is of no run
            self._values.append(watts)
            self._note(watts is not None, code, text)
            pause_s = self._each_s if self._well else min(SLOWEST_S, 2 * pause_s)
            end.wait(max(0.0, begun + pause_s - time.monotonic()))

    def _reading(self) -> Tuple[Optional[float], str, str]:
        """Watts, or None with the code and the text of why."""
        try:
            return self._read(), "recovered", "the power of the machine is read again"
        except SourceError as error:
            return None, error.code, error.text
        except Exception as error:  # noqa: BLE001 (a controller may answer anything)
            return None, FAILED, "%s: %s" % (type(error).__name__, error)

    def _note(self, well: bool, code: str, text: str) -> None:
        before, self._well = self._well, well
        if before is not well and (before is not None or not well):
            self._errs.append(err_line(self.source, code, text, field="node_power_w"))


# --- IPMI


def ipmi() -> float:
    """Watts by `ipmitool`: DCMI's reading, else a sensor of the whole machine. Raises SourceError."""
    said = _ipmitool("dcmi", "power", "reading")
    found, state = _DCMI.search(said), _STATE.search(said)
    if found and int(found.group(1)) > 0 and (state is None or state.group(1) == "activated"):
        return float(found.group(1))
    watts = _sensor(_ipmitool("sdr", "type", "Current"))
    if watts is None:
        raise SourceError(NOT_SUPPORTED, "ipmitool knows no power of this machine: %s" % said.strip()[:200])
    return watts


def _sensor(said: str) -> Optional[float]:
    """Watts of the sensor of the whole machine, in lines as `NAME | id | state | entity | 168 Watts`."""
    for line in said.splitlines():
        columns = [column.strip() for column in line.split("|")]
        value = re.fullmatch(r"(\d+(?:\.\d+)?) Watts", columns[-1])
        if value and float(value.group(1)) > 0 and "ok" in columns and _WHOLE.fullmatch(columns[0]):
            return float(value.group(1))
    return None


def _ipmitool(*words: str) -> str:
    """What it prints; empty where it says that it cannot, but for the reasons that no other command mends."""
    try:
        done = subprocess.run(
            ["ipmitool", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=TIMEOUT_S,
            env={**os.environ, "LC_ALL": "C"},
            check=False,
        )
    except FileNotFoundError as error:
        raise SourceError(NOT_FOUND, "there is no ipmitool here: install it, or leave node_power out") from error
    except subprocess.TimeoutExpired as error:
        raise SourceError(FAILED, "ipmitool did not answer within %g s" % TIMEOUT_S) from error
    words_of_error = done.stderr.decode("utf-8", "replace").strip()
    if "Could not open device" in words_of_error:
        text = "ipmitool reaches no controller (it needs /dev/ipmi0, and root): %s" % words_of_error[:200]
        raise SourceError(NO_PERMISSION, text)
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""


# --- Redfish


class Redfish:
    """Watts of one chassis by a controller's HTTPS. `secret` is the file of the password.

    `url` is the controller (https://bmc) or one chassis of it (https://bmc/redfish/v1/Chassis/1); `insecure` takes
    any certificate, as controllers often have one of their own making.
    """

    def __init__(self, url: str, user: str, secret: str, insecure: bool = False) -> None:
        self.user = user
        self.secret = secret
        self.insecure = insecure
        rest = url.partition("://")[2]
        self.host, slash, path = rest.partition("/")
        self.chassis = slash + path.rstrip("/") if "/Chassis/" in slash + path else None
        self._connection: Optional[http.client.HTTPSConnection] = None
        self._at: Optional[Tuple[str, Callable[[Dict[str, Any]], Optional[float]]]] = None

    def read(self) -> float:
        """Watts now. Raises SourceError."""
        try:
            return self._watts()
        except Exception:
            self._at = None  # looked for anew
            self.close()
            raise

    def _watts(self) -> float:
        if self._at is None:
            self._at = self._find()
        path, take = self._at
        watts = take(self._get(path))
        if watts is None:
            raise SourceError(NOT_SUPPORTED, "%s: %s has no power reading now" % (self.host, path))
        return watts

    def close(self) -> None:
        """Close the connection, if one stands; `read` opens another."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _find(self) -> Tuple[str, Callable[[Dict[str, Any]], Optional[float]]]:
        """The one resource that tells the machine's power."""
        paths = [self.chassis] if self.chassis is not None else _members(self._get("/redfish/v1/Chassis"))
        found = []
        for path in paths:
            chassis = self._get(path)
            contained = (chassis.get("Links") or {}).get("ContainedBy") and self.chassis is None
            if contained or chassis.get("ChassisType") in ("Component", "Module", "Rack"):
                continue
            for link, take in (("Power", _of_control), ("EnvironmentMetrics", _of_metrics)):
                there = (chassis.get(link) or {}).get("@odata.id")
                if there and take(self._get(there)) is not None:
                    found.append((path, there, take))
                    break
        if not found:
            raise SourceError(NOT_SUPPORTED, "%s: no chassis tells its power" % self.host)
        if len(found) > 1:
            names = ", ".join(path for path, _, _ in found)
            raise SourceError(
                FAILED, "%s: several chassis tell their power (%s): name one in the url" % (self.host, names)
            )
        return found[0][1:]

    def _get(self, path: str) -> Dict[str, Any]:
        for _ in range(3):
            status, where, body = self._ask(path)
            if status not in (301, 302, 307, 308) or not where.startswith("/"):
                break
            path = where  # the same with a slash at its end
        if status in (401, 403):
            raise SourceError(NO_PERMISSION, "%s refuses the user %s (%d)" % (self.host, self.user, status))
        if status != 200:
            raise SourceError(
                NOT_FOUND if status == 404 else FAILED, "%s answers %d for %s" % (self.host, status, path)
            )
        obj = json.loads(body)
        if not isinstance(obj, dict):
            raise SourceError(FAILED, "%s answers no object for %s" % (self.host, path))
        return obj

    def _ask(self, path: str) -> Tuple[int, str, bytes]:
        """Status, redirection (as a path, where it is of this host) and body; on a connection that stands, if any."""
        import http.client  # heavy, and needed where a profile says so alone
        import ssl

        with open(self.secret, "rb") as f:
            login = base64.b64encode(self.user.encode() + b":" + f.read()).decode()
        headers = {"Authorization": "Basic " + login, "Accept": "application/json", "OData-Version": "4.0"}
        for again in (True, False):
            stands = self._connection is not None
            if self._connection is None:
                context = ssl.create_default_context()
                if self.insecure:
                    context.check_hostname = False
                    context.verify_mode = ssl.CERT_NONE
                self._connection = http.client.HTTPSConnection(self.host, timeout=TIMEOUT_S, context=context)
            try:
                self._connection.request("GET", path, headers=headers)
                answer = self._connection.getresponse()
                body = answer.read(_ANSWER_BY)
            except (http.client.HTTPException, OSError) as error:
                self._connection.close()
                self._connection = None
                if not (stands and again):  # one that it has closed meanwhile is opened anew
                    raise SourceError(FAILED, "%s: %s" % (self.host, error or type(error).__name__)) from error
            else:
                where = answer.getheader("Location") or ""
                here = "https://%s" % self.host
                return answer.status, where[len(here) :] if where.startswith(here + "/") else where, body
        raise AssertionError


def _members(collection: Dict[str, Any]) -> List[str]:
    return [member["@odata.id"] for member in collection.get("Members") or () if "@odata.id" in member]


def _of_control(power: Dict[str, Any]) -> Optional[float]:
    """The first PowerControl is the chassis'; further ones are parts of it."""
    controls = power.get("PowerControl") or [{}]
    return _watts(controls[0].get("PowerConsumedWatts"))


def _of_metrics(metrics: Dict[str, Any]) -> Optional[float]:
    return _watts((metrics.get("PowerWatts") or {}).get("Reading"))


def _watts(value: Any) -> Optional[float]:
    """A machine that runs draws something: 0 is no reading."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e6:
        return None
    return float(value)
