"""From a theme's plain data to what textual and rich draw with."""

from __future__ import annotations

from rich.style import Style
from textual.theme import Theme

from cockpit.report.themes import SIDES, ThemeData


class Look:
    """Styles of one theme by the name of what they mean; made once, for they are asked for in every painted line."""

    def __init__(self, theme: ThemeData) -> None:
        self.theme = theme
        self._styles: dict[tuple[str, bool, float, str], Style] = {}

    def __call__(self, name: str, *, bold: bool = False, fade: float = 0.0, on: str = "background") -> Style:
        """The style of a semantic name. `fade` 0..1 blends it into what it stands on."""
        key = (name, bold, fade, on)
        style = self._styles.get(key)
        if style is None:
            ground = self.theme[on]
            style = Style(color=blend(self.theme[name], ground, fade), bgcolor=ground, bold=bold)
            self._styles[key] = style
        return style

    def side(self, index: int, *, bold: bool = False, fade: float = 0.0, on: str = "background") -> Style:
        """The style of the server at `index`; beyond the fourth the colours begin anew."""
        return self(SIDES[index % len(SIDES)], bold=bold, fade=fade, on=on)

    def heat(self, ratio: float) -> str:
        """The name of the colour of a load 0..1."""
        return "gpu.hot" if ratio >= 0.9 else "gpu.warm" if ratio >= 0.6 else "gpu.cool"


def blend(colour: str, ground: str, share: float) -> str:
    """`colour` mixed with `share` (0..1) of `ground`, all as `#rrggbb`."""
    if not share:
        return colour
    pairs = zip(_rgb(colour), _rgb(ground), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


def textual_theme(data: ThemeData) -> Theme:
    """The theme for textual, with every semantic name as a variable (`side.a` is `$side-a`)."""
    return Theme(
        name=data.name,
        primary=data["primary"],
        secondary=data["secondary"],
        accent=data["accent"],
        foreground=data["foreground"],
        background=data["background"],
        surface=data["surface"],
        panel=data["panel"],
        success=data["ok"],
        warning=data["warn"],
        error=data["error"],
        dark=data.dark,
        variables=variables(data),
    )


def variables(data: ThemeData) -> dict[str, str]:
    """A theme's colours under the names that style sheets use."""
    return {name.replace(".", "-"): colour for name, colour in data.colors.items()}


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)
