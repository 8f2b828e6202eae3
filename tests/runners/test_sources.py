"""Sources of records: tables, chats, data sets of the hub in their layout on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runners.data import chat, convert, records, sources, tables
from runners.data.records import Fields, Record, Skips
from runners.errors import ConfigurationError
from runners.schema import Data

CHAT = ({"role": "user", "content": "Ping"}, {"role": "assistant", "content": "Pong"})


def texts(data: Data, **options: Any) -> list[str]:
    return [document.text for document in sources.documents(data, Path("/none"), **options)]


# -- CSV


def test_rows_are_records_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'\xef\xbb\xbfid,input,output\r\n1,"a,b","x\r\ny"\r\n2,,z\r\n', )  # fmt: skip
    with pytest.raises(ConfigurationError, match=r"a\.csv:4: the record has 'output' but no prompt"):
        list(tables.read([str(path)]))
    skips = Skips()
    assert list(tables.read([str(path)], "skip", skips=skips)) == [
        Record(str(path), 3, prompt="a,b", completion="x\r\ny")
    ]
    assert skips.count == 1


def test_columns_of_other_names_and_tabs(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("body\ttitle\nlong text\tT\n")
    assert [r.text for r in tables.read([str(path)], fields=Fields(text="body"))] == ["long text"]
    data = Data.model_validate(
        {"source": "csv", "paths": [str(path)], "fields": {"prompt": "title", "completion": "body"}}
    )
    assert texts(data) == ["Tlong text"]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "is empty: its first row must name the columns"),
        (b"text\na,b\n", r":2: the row has more fields"),
        (b"text,other\na\n", r":2: the row has fewer fields"),
        (b'text\n"a\n', r":\d: no CSV: unexpected end of data"),
        (b"text\n\xff\n", r":\d: the row is no UTF-8 text"),
        (b"body\na\n", r":2: the record has neither .* 'body'"),
        (b"text\n", r"data\.source=csv \(.*a\.csv\) holds no text\. Take other data"),
    ],
)
def test_a_broken_table_is_one_sentence(tmp_path: Path, content: bytes, told: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=told):
        texts(Data(source="csv", paths=(str(path),)))


# -- chats


def test_the_plain_layout_is_as_it_is_stated() -> None:
    assert chat.plain(Record("f", 1, messages=CHAT)).text == "user: Ping\nassistant: Pong\n"
    assert chat.plain(Record("f", 1, prompt="Hello", completion=" World")).text == "Hello World"
    assert chat.plain(Record("f", 7, text="x")).name == "f:7"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer's folder with a chat template and marks of its own."""
    pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("published")
    vocab = {chr(code): at for at, code in enumerate([*range(32, 127), 10])}
    vocab |= {"<eos>": len(vocab), "<unk>": len(vocab) + 1, "<|turn|>": len(vocab) + 2}
    backend = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.add_special_tokens(["<eos>", "<|turn|>"])
    backend.save(str(folder / "tokenizer.json"))
    template = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
        "{% for m in messages %}<|turn|>{{ m.role }}:{{ m.content }}{% endfor %}"
    )
    described = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(described))
    return folder


def test_messages_go_by_the_tokenizers_template_and_its_marks_are_tokens(published: Path, tmp_path: Path) -> None:
    from runners.data import encode, make, tokenizer

    path = tmp_path / "a.jsonl"
    plain = "a<|turn|>b"  # the spelling of a mark in a text is text
    path.write_text(json.dumps({"messages": CHAT}) + "\n" + json.dumps({"text": plain}) + "\n")
    data = Data(source="jsonl", paths=(str(path),), tokenizer=str(published))
    found = list(sources.documents(data, tmp_path, make._layout(data)))
    assert [(d.text, d.marked) for d in found] == [("<|turn|>user:Ping<|turn|>assistant:Pong", True), (plain, False)]
    tokens = tokenizer.resolve(data)
    mark = tokens.backend.token_to_id("<|turn|>")
    first, second = [ids.tolist() for _document, ids in encode.encoded(tokens, found)]
    assert (first.count(mark), second.count(mark)) == (2, 0)
    assert first[-1] == second[-1] == tokens.eos_id
    assert len(second) == len(plain) + 1


def test_what_a_template_refuses_is_a_broken_record(published: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    system = [{"role": "system", "content": "Be brief"}]
    path.write_text("\n".join(json.dumps({"messages": m}) for m in (CHAT, system)))
    data = Data(source="jsonl", paths=(str(path),))
    layout = chat.templated(published)
    with pytest.raises(
        ConfigurationError, match=r"a\.jsonl:2: the tokenizer's chat template refuses .*no system role"
    ):
        texts(data, layout=layout)
    skips = Skips()
    assert len(texts(data.model_copy(update={"on_error": "skip"}), layout=layout, skips=skips)) == 1
    assert skips.count == 1


# -- nothing to read


def test_no_text_says_what_was_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": 1}\n')
    with pytest.raises(
        ConfigurationError, match=r"holds no text \(1 broken records were left out; the first: .*a\.jsonl:1"
    ):
        texts(Data(source="jsonl", paths=(str(path),), on_error="skip"), skips=Skips())


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"source": "jsonl"}, "data.paths are for data.source=files, jsonl, csv and indexed, which need them"),
        ({"source": "hub"}, "data.source=hub needs it"),
        ({"source": "url"}, "data.source=url needs them"),
        (
            {"source": "url", "urls": ["http://a/b.txt"], "sums": ["0" * 64] * 2},
            "data.sums are 2, but data.urls are 1",
        ),
        ({"source": "mock", "format": "energon"}, "has no text for data.format=energon"),
        ({"source": "indexed", "paths": ["a", "b"]}, "takes one prefix"),
        ({"shards": 3}, "greater than or equal to 10"),
    ],
)
def test_settings_that_do_not_fit_are_refused(said: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Data.model_validate(said)


# -- data sets of the hub, on disk in the hub's layout


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("datasets")
    import pyarrow as pa
    from pyarrow import parquet

    folder = tmp_path_factory.mktemp("hub") / "reports"
    for subset in ("small", "large"):
        for split, count in (("train", 5), ("test", 2)):
            (folder / subset).mkdir(parents=True, exist_ok=True)
            rows = {"report": [f"{subset} {split} report {n}" for n in range(count)], "summary": ["s"] * count}
            parquet.write_table(pa.table(rows), folder / subset / f"{split}-00000-of-00001.parquet")
    described = "".join(
        f"- config_name: {subset}\n  data_files:\n  - split: train\n    path: {subset}/train-*\n"
        f"  - split: test\n    path: {subset}/test-*\n"
        for subset in ("small", "large")
    )
    (folder / "README.md").write_text(f"---\nconfigs:\n{described}---\n")
    return folder


def hub_data(dataset: Path, **changes: Any) -> Data:
    fields = {"prompt": "report", "completion": "summary"}
    said = {"source": "hub", "repo": str(dataset), "subset": "small", "split": "test", "fields": fields}
    return Data.model_validate(said | changes)


def test_a_split_of_a_subset_is_read_in_order(dataset: Path) -> None:
    found = list(sources.records_of(hub_data(dataset), Path("/none")))
    assert [(r.prompt, r.completion, r.line) for r in found] == [
        ("small test report 0", "s", 1),
        ("small test report 1", "s", 2),
    ]
    assert len(texts(hub_data(dataset, subset="large", split="train"))) == 5
    assert len(texts(hub_data(dataset, subset="large", split="train", samples=2))) == 2
    assert texts(hub_data(dataset, subset=None, files=["large/test-*"])) == [
        f"large test report {n}s" for n in (0, 1)
    ]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"split": "dev"}, r"data\.split=dev: the data set .* has no such split, but train, test"),
        ({"subset": "huge"}, r"cannot be read as a data set: .*huge"),
        ({"fields": {}}, r"\[test\]:1: the record has neither .*'report', 'summary'"),
        ({"repo": "./none"}, r"data\.repo: the folder .*none is not there"),
        ({"repo": "some/where", "offline": True}, r"data\.repo=some/where: offline mode is on"),
    ],
)
def test_what_a_data_set_does_not_have_is_named(
    dataset: Path, changes: dict[str, Any], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=told):
        texts(hub_data(dataset, **changes))


def test_a_changed_file_makes_another_entry(dataset: Path) -> None:
    before = sources.state(hub_data(dataset))
    (dataset / "small" / "test-00000-of-00001.parquet").touch()
    assert sources.state(hub_data(dataset)) != before


# -- to JSONL


def test_any_source_of_records_becomes_jsonl(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, target = tmp_path / "a.csv", tmp_path / "a.jsonl"
    table.write_text("input,output\nHello, World\nx\ny,z\n")
    words = ["data.source=csv", f"data.paths=[{table}]"]
    assert convert.main([str(target), *words]) == 2
    assert "a.csv:3: the row has fewer fields" in capsys.readouterr().err
    assert not target.exists()
    assert convert.main([str(target), *words, "data.on_error=skip"]) == 0
    assert "2 records in" in capsys.readouterr().out
    assert [(r.prompt, r.completion) for r in records.read([str(target)])] == [("Hello", " World"), ("y", "z")]
    convert.write(hub_data(dataset), tmp_path, target)
    assert json.loads(target.read_text().splitlines()[1]) == {"prompt": "small test report 1", "completion": "s"}
    chats = tmp_path / "chats.jsonl"
    chats.write_text(
        json.dumps({"conversations": [{"from": "human", "value": "Ping"}, {"from": "gpt", "value": "Pong"}]})
    )
    convert.write(Data(source="jsonl", paths=(str(chats),)), tmp_path, target)
    assert json.loads(target.read_text()) == {"messages": list(CHAT)}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.csv", "a.jsonl", "chats.jsonl"]
