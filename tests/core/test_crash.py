"""What is written of an internal error holds no secret and no locals."""

from __future__ import annotations

import stat

import pytest

from cockpit.core import crash
from cockpit.core.crash import conceal, message, redact, write_report


@pytest.mark.parametrize(
    "text",
    [
        "token hf_abcDEF1234567890 here",
        "Authorization: Bearer abc.def.ghi123",
        "https://user:hunter22@example.org/x",
        "password='hunter22'",
        "HF_TOKEN=hunter22",
        "api_key: hunter22",
    ],
)
def test_a_secret_is_taken_out(text: str) -> None:
    out = redact(text, {})
    assert "hunter22" not in out
    assert "abcDEF" not in out
    assert "abc.def" not in out
    assert "***" in out


def test_a_value_of_a_secret_variable_is_taken_out_wherever_it_stands() -> None:
    assert redact("cannot reach plainvalue9 now", {"MY_SECRET": "plainvalue9"}) == "cannot reach *** now"


def test_ordinary_text_stays() -> None:
    text = 'File "app.py", line 12, in run\n    tokens = 5\nValueError: 3 steps of https://example.org:80/x'
    assert redact(text, {"HOME": "File"}) == text


def test_the_report_is_private_and_without_locals() -> None:
    def inner() -> None:
        local_secret = "value-of-a-local"  # noqa: F841
        raise ValueError("bad HF_TOKEN=hf_0123456789abcdef")

    with pytest.raises(ValueError) as caught:
        inner()
    path = write_report(caught.value)
    assert path is not None
    text = path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "hf_0123456789abcdef" not in text
    assert "ValueError" in text
    # The source line may stand there; what it held may not, were it not in the source itself.
    assert "local_secret = " not in text
    said = message(caught.value, path, "20260131-g")
    assert str(path) in said
    assert "attach 20260131-g" in said
    assert "hf_0123" not in said


def test_a_secret_that_was_read_is_taken_out_whatever_it_looks_like(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crash, "_concealed", set())
    value = 'it\'s plain\nand "quoted"'
    conceal(value)
    conceal("")
    said = redact(f"{value} {value!r} {value.encode()!r}", {})
    assert "plain" not in said
    assert said.count("***") == 3
