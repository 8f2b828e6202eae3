"""What rocm-smi prints, as JSON or as its table, in the fields of the schema: pure functions."""

from __future__ import annotations

import re
from typing import Any, Dict, List, NamedTuple, Optional

from .amd_text import Reader, Told, json_in, number_in, word_in
from .gpu_metrics import ENERGY_J
from .source import SENTINEL

Card = Dict[str, Any]
_CARD = re.compile(r"card(\d+)$")
_ROW = re.compile(
    r"(?P<gpu>\d+)\s+.*?(?P<temp>\S+)°C\s+(?P<power>\S+?)W?\s+(?P<nps>\S+),\s+(?P<mode>\S+),\s+(?P<part>\S+)\s+"
    r"(?P<sclk>\S+?)(?:Mhz)?\s+(?P<mclk>\S+?)(?:Mhz)?\s+\S+\s+\S+\s+(?P<cap>\S+?)W?\s+(?P<vram>\S+?)%?\s+(?P<util>\S+?)%?$"
)
_TEMPERATURES = (
    ("Temperature (Sensor edge) (C)", "temp_edge_c"),
    ("Temperature (Sensor junction) (C)", "temp_hot_c"),
    ("Temperature (Sensor memory) (C)", "temp_mem_c"),
)
_POWER = (
    "Current Socket Graphics Package Power (W)",
    "Average Graphics Package Power (W)",
    "Current Graphics Package Power (W)",
)
_BUSY = ("GPU Memory Read/Write Activity (%)", "GPU memory use (%)")


class Cards(NamedTuple):
    """A document of rocm-smi: each card's own words, and the machine's."""

    cards: Dict[int, Card]
    system: Card


def cards_in(text: str) -> Cards:
    """The cards of `rocm-smi ... --json`. Raises ValueError where there are none."""
    document = json_in(text)
    if not isinstance(document, dict):
        document = {}
    cards = {}
    for name, card in document.items():
        found = _CARD.match(name)
        if found and isinstance(card, dict):
            cards[int(found.group(1))] = card
    if not cards:
        raise ValueError("the output names no card")
    system = document.get("system")
    return Cards(cards, system if isinstance(system, dict) else {})


def fields(index: int, card: Card) -> Told:
    """One card."""
    reader = Reader()
    if "GPU use (%)" in card:
        reader.put("util", card["GPU use (%)"], 0.01, most=100.0)
    for key in _BUSY:
        if key in card and reader.reading.get("mem_busy") is None:
            reader.put("mem_busy", card[key], 0.01, most=100.0)
    for key, field in _TEMPERATURES:
        if key in card:
            reader.put(field, card[key], most=250.0)
    _power(reader, card)
    for key, field in (("sclk clock speed:", "clk_sm_mhz"), ("mclk clock speed:", "clk_mem_mhz")):
        if key in card and field == "clk_sm_mhz":
            reader.clocks([card[key]])
        elif key in card:
            reader.put(field, card[key])
    for key, field in (("VRAM Total Used Memory (B)", "mem_used"), ("VRAM Total Memory (B)", "mem_total")):
        if key in card:
            reader.put(field, card[key], counter=True)
    if "Fan speed (%)" in card:
        reader.put("fan", card["Fan speed (%)"], 0.01, most=100.0)
    _energy(reader, card)
    return reader.told(index)


def documents(cards: Cards) -> List[Told]:
    """All cards that hold a value of the schema."""
    return [told for told in (fields(index, card) for index, card in sorted(cards.cards.items())) if told.reading]


def table(text: str) -> List[Told]:
    """The lines of rocm-smi's concise table. Its fan column says 0 % also where there is no fan: it is not read."""
    found = []
    for line in text.splitlines():
        row = _ROW.match(line.strip())
        if row is None:
            continue
        reader = Reader()
        reader.put("temp_hot_c", row["temp"], most=250.0)
        reader.put("power_w", row["power"])
        reader.put("power_limit_w", row["cap"])
        reader.put("util", row["util"], 0.01, most=100.0)
        reader.clocks([row["sclk"]])
        reader.put("clk_mem_mhz", row["mclk"])
        partition = number_in(row["part"])
        found.append(reader.told(int(row["gpu"]), None if partition is None else int(partition)))
    return found


def identity(card: Card, system: Card) -> Dict[str, Any]:
    """DEVICE_KEYS as far as a card's words tell them; `device_id`, `gfx`."""
    unique = word_in(card.get("Unique ID"))
    names = ("Card Series", "Card series", "Device Name", "Card Model", "Card model")
    bdf = word_in(card.get("PCI Bus"))
    numa = number_in(card.get("(Topology) Numa Node"))
    told = {
        "bdf": bdf.lower() if bdf else None,
        "uuid": "GPU-" + unique[2:].lower().zfill(16) if unique and unique.lower().startswith("0x") else None,
        "model": next((name for key in names if (name := word_in(card.get(key))) and not _is_hex(name)), None),
        "vbios": word_in(card.get("VBIOS version")),
        "driver": word_in(system.get("Driver version")),
        "numa_node": int(numa) if numa is not None and numa >= 0 else None,
        "mem_total": number_in(card.get("VRAM Total Memory (B)"), counter=True),
        "compute_mode": word_in(card.get("Compute Partition")),
        "memory_mode": word_in(card.get("Memory Partition")),
        "power_limit_w": number_in(card.get("Max Graphics Package Power (W)")) or None,
        "device_id": word_in(card.get("Device ID")) or word_in(card.get("GPU ID")),
        "gfx": word_in(card.get("GFX Version")),
    }
    return {key: value for key, value in told.items() if value is not None}


def _is_hex(name: str) -> bool:
    return name.lower().startswith("0x")


def _power(reader: Reader, card: Card) -> None:
    for key in _POWER:
        if key in card and reader.reading.get("power_w") is None:
            reader.put("power_w", card[key])
    if "Max Graphics Package Power (W)" in card:
        reader.put("power_limit_w", card["Max Graphics Package Power (W)"])


def _energy(reader: Reader, card: Card) -> None:
    """By the counter itself where it is printed: the tool's joules are its product with a rounded unit."""
    count = number_in(card.get("Energy counter"), counter=True)
    micro: Optional[float] = number_in(card.get("Accumulated Energy (uJ)"), counter=True)
    if count is not None:
        reader.energy(count * ENERGY_J, None)
    elif micro is not None:
        reader.energy(micro * 1e-6, None)
    elif "Energy counter" in card or "Accumulated Energy (uJ)" in card:
        reader.none("energy_j", SENTINEL, "the tool prints no energy")
