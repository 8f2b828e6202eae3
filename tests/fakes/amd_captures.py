"""The captures of AMD's tools, each through its format's parser; what holds no metrics is said to be what it is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runners.agent.gpu import amd_text, amd_values, rocm_text
from runners.agent.gpu.amd_text import Told
from runners.agent.gpu.gpu_metrics import Values, decode
from runners.agent.gpu.source import FIELDS, NOT_TOLD, Reasons
from tests.fakes.coverage import COUNTER, Capture
from tests.fakes.gpu_metrics import blob

_COMMAND = re.compile(r"^\s*[$#]\s+(?:sudo\s+)?(?:\S*/)?((?:amd|rocm)-smi)\b([^\n]*)", re.MULTILINE)
_PLAIN = {  # what a command prints that has no metrics
    "topology": "how the GPUs are linked",
    "xgmi": "bytes of links by peer, in rounded units",
    "partition": "partition profiles",
    "process": "processes (they are taken from the compute driver)",
    "ras": "error records",
    "set": "what a setting answered",
    "version": "versions of the tools",
    "list": "the GPUs' addresses",
    "static": "what the GPUs are",
}
_FILE_MODELS = {"mi250x": "MI250X", "mi250": "MI250", "mi210": "MI210", "mi300a": "MI300A", "mi300x": "MI300X"}


@dataclass
class Part:
    """One answer of one tool: its GPUs' readings, what it says of them, or why it holds neither."""

    tool: str
    told: list[Told] = field(default_factory=list)
    about: list[dict[str, Any]] = field(default_factory=list)
    none: str = ""


def parts(path: Path) -> list[Part]:
    """What one file holds. Raises AssertionError for a file of no known kind."""
    name, text = path.name, path.read_text()
    if name.startswith("changelog__"):
        return list(_commands(text))
    if name.startswith("dme__"):
        return [part for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL) for part in _commands(block)]
    if name.startswith("inferencex__"):
        return [Part("amd-smi metric --csv", amd_text.comma_separated(_quoted_csv(text)))]
    if name.startswith("realcli_"):
        gpus = amd_text.gpus_in(amd_text.json_in(text))
        if "_list_" in name:
            return [Part("amd-smi list --json", about=[amd_text.identity(gpu) for gpu in gpus])]
        return [Part("amd-smi metric --json", amd_text.metrics(gpus))]
    if name.startswith("rocprofiler-sdk__"):
        return [Part("rocm-smi", rocm_text.table(text))]
    cards = rocm_text.cards_in(text)
    about = [rocm_text.identity(card, cards.system) for _, card in sorted(cards.cards.items())]
    return [Part("rocm-smi --json", rocm_text.documents(cards), about)]


def files(root: Path) -> list[Path]:
    """All captures of AMD's tools."""
    found = [*root.glob("telemetry/amd/*"), *root.glob("telemetry/amd-synthetic/*")]
    return sorted(path for path in found if path.is_file())


def tables(path: Path) -> Iterator[tuple[str, str, list[Values]]]:
    """(model, revision, one table or two of one GPU) of a file that holds the driver's own, as bytes or values."""
    if path.suffix == ".bin":
        values, name = decode(path.read_bytes())
        assert values is not None, name
        yield ("Radeon PRO W7900" if "w7900" in path.name else "MI300X"), name, [values]
        return
    document = {key: value for key, value in json.loads(path.read_text()).items() if not key.startswith("_")}
    loads = [key for key in document if "_load_" in key]
    for key, told in document.items():
        if key not in loads:
            model = "Radeon PRO W7900" if key.startswith("w7900") else "MI300X VF" if "_vf_" in key else "MI300X"
            yield model, f"v{told['format']}.{told['content']}", [_table(told, told)]
    yield "MI300X VF", "v1.9", [_table(document[key], {"format": 1, "content": 9}) for key in loads]


def captures(root: Path) -> list[Capture]:
    """All of the folder of real captures that hold a field of the schema."""
    found: list[Capture] = []
    for path in files(root):
        if path.suffix == ".bin" or path.name.startswith("gpudiagnostics"):
            for model, revision, values in tables(path):
                told, why = of_table(values)
                found.append(_capture(model, "sysfs gpu_metrics", revision, path, told, why))
            continue
        for part in parts(path):
            for i, one in enumerate(part.told):
                about = part.about[i] if i < len(part.about) else {}
                model = _model(path, about)
                found.append(_capture(model, part.tool, _version(path.name), path, one.reading, one.why))
    return found


def remarks(root: Path) -> str:
    """A list of what holds no field of the schema, and what it holds."""
    lines: dict[str, list[str]] = {}
    for path in files(root):
        if path.suffix != ".bin" and not path.name.startswith("gpudiagnostics"):
            for part in parts(path):
                if not part.told:
                    lines.setdefault(f"{part.tool}: {part.none or _PLAIN['list']}", []).append(_version(path.name))
    rows = [f"- {what} ({', '.join(sorted(set(versions)))})" for what, versions in sorted(lines.items())]
    return "\nRead, and without a field of the schema:\n\n" + "\n".join(rows) + "\n"


def of_table(values: list[Values]) -> tuple[dict[str, Any], dict[str, tuple[str, str]]]:
    """The fields that a table gives, from a second one also those that are differences."""
    why = Reasons()
    throttle, slow = amd_values.Throttle(None), amd_values.Slow()
    told: dict[str, Any] = {}
    for i, table in enumerate(values):
        told = amd_values.hot(table, why)
        told["throttle"] = throttle.told(table, told["util"], why)
        told.update(slow.told(table, 5.0 * i, why))
        told["energy_j"] = amd_values.energy_j(table, why)
    if values[-1].get("acc") is not None and len(values) == 1:
        told.update(thr_power=COUNTER, thr_thermal=COUNTER, throttle=COUNTER)
    told.pop("mem_used", None)
    return told, why.known


def _table(told: dict[str, Any], header: dict[str, Any]) -> Values:
    """Transcribed values as the bytes that they stood in, read again."""
    version = f"v{header['format']}.{header['content']}"
    names = {"gfx_activity": "average_gfx_activity", "umc_activity": "average_umc_activity"}
    fields = {names.get(key, key): value for key, value in told.items() if key not in ("format", "content", "size")}
    if version != "v1.3":
        fields["curr_socket_power"] = fields.pop("current_socket_power")
    values, _ = decode(blob(version, fields))
    assert values is not None
    return values


def _capture(model: str, tool: str, version: str, path: Path, told: dict[str, Any], why: dict[str, Any]) -> Capture:
    reasons = {
        name: (NOT_TOLD, f"this output of {tool} does not tell it") for name in FIELDS if told.get(name) is None
    }
    return Capture("amd", model, tool, version, path.name, {**dict.fromkeys(FIELDS), **told}, {**reasons, **why})


def _commands(text: str) -> Iterator[Part]:
    """Each command of a console and what it printed."""
    starts = [*_COMMAND.finditer(text)]
    for i, start in enumerate(starts):
        end = starts[i + 1].start() if i + 1 < len(starts) else len(text)
        words = start.group(2).split()
        verb = words[0] if words and not words[0].startswith("-") else "--help"
        yield _printed(verb, f"{start.group(1)} {verb}", text[start.start() : end])


def _printed(verb: str, tool: str, text: str) -> Part:
    if verb == "monitor":
        told = amd_text.monitor(text)
        return Part(tool, told, none="" if told else "video engines")
    if verb == "metric":
        told = amd_text.metrics(amd_text.nested(text))
        none = next((why for word, why in _METRIC_PARTS if word in text), "clocks of other engines")
        return Part(tool, told, none="" if told else none)
    if verb in ("list", "static"):
        about = [amd_text.identity(gpu) for gpu in amd_text.nested(text)]
        return Part(tool, about=[one for one in about if one], none=_PLAIN[verb])
    return Part(tool, none=_PLAIN.get(verb, "how it is called"))


_METRIC_PARTS = (
    ("CORE:", "of the processor"),
    ("CPU:", "of the processor"),
    ("ECC_BLOCKS", "errors by block, without their sum"),
    ("BOARD:", "temperatures of the board"),
)


def _quoted_csv(text: str) -> str:
    """Rows of a real file that stand in the source of a test, under the header that it names."""
    found = re.search(r"_ENERGY_SNAPSHOT_HEADER = \((.*?)\)", text, re.DOTALL)
    assert found is not None
    header = "".join(re.findall(r'"([^"]*)"', found.group(1)))
    return "\n".join([header, *re.findall(r'"(\d+,\d+,[^"{]*)\\n"', text)])


def _model(path: Path, about: dict[str, Any]) -> str:
    named = next((model for key, model in _FILE_MODELS.items() if f"_{key}_" in path.name), None)
    if "synthetic" in str(path.parent):
        return f"{named} (made values)"
    if "mi355x" in path.name:
        return "MI355X"
    if "mi325x" in path.name:
        return "MI325X VF"
    model = about.get("model")
    if isinstance(model, str) and "GENERIC" not in model and "FirePro" not in model:
        return str(model)
    if "rx6700xt" in path.name:
        return "RX 6700 XT"
    return named or "not named"


def _version(name: str) -> str:
    found = re.search(r"rocm-?(\d+\.\d+\.\d+|\d+\.x|\d(?=_))", name) or re.search(r"amdsmi(\d+\.\d+\.\d+)", name)
    if found:
        return found.group(1)
    short = re.search(r"rocm(\d)(\d)(\d)", name) or re.search(r"cli(\d)(\d)()", name)
    return ".".join(part for part in short.groups() if part) if short else "-"
