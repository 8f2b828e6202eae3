"""What of a record is learnt, how batches are made, and what is said of input that cannot be used."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from runners.errors import ConfigurationError
from tests.runners.lora_support import ADAPTERS, EVERYWHERE, MODEL, body, context

pytestmark = [pytest.mark.train, pytest.mark.filterwarnings("ignore:::transformers"), pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def model(cache: Path) -> Path:
    """The new model's folder, with its tokenizer."""
    from runners.lora import sources
    from runners.schema import LoraRunner, RunConfig

    config = RunConfig.model_validate(body(seq_len=64))
    assert isinstance(config.runner, LoraRunner)
    return sources.find(config, config.runner, cache).model


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(model))


def learnt(tokenizer: Any, record: Mapping[str, Any]) -> str:
    """The text whose tokens have labels."""
    from runners.data.records import record as parsed
    from runners.lora.data import IGNORE, Encoder

    ids, labels = Encoder(tokenizer).encode(parsed(record, "file", 1))
    assert len(ids) == len(labels)
    assert all(label in (IGNORE, token) for token, label in zip(ids, labels, strict=True))
    return str(tokenizer.decode([label for label in labels if label != IGNORE]))


def talk(*turns: str) -> dict[str, Any]:
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[at % 2], "content": turn} for at, turn in enumerate(turns)]}


@pytest.mark.parametrize(
    ("record", "text"),
    [
        ({"prompt": "3 + 4 =", "completion": " 7"}, " 7<|endoftext|>"),
        ({"text": "3 and 4 make 7"}, "3 and 4 make 7<|endoftext|>"),
        (talk("what is 3 plus 4?", "7"), "7<|end|>"),
        (talk("what is 1 plus 1?", "2", "and what is 3 plus 4?", "7"), "2<|end|>7<|end|>"),
        ({"messages": [{"role": "system", "content": "add"}, *talk("3 plus 4?", "7")["messages"]]}, "7<|end|>"),
    ],
)
def test_only_answers_completions_and_plain_texts_are_learnt(
    tokenizer: Any, record: dict[str, Any], text: str
) -> None:
    assert learnt(tokenizer, record) == text


def test_a_tokenizer_without_a_chat_template_gets_a_plain_one(model: Path) -> None:
    from transformers import AutoTokenizer

    bare = AutoTokenizer.from_pretrained(str(model))
    bare.chat_template = None
    assert learnt(bare, talk("what is 3 plus 4?", "7")) == " 7\n<|endoftext|>"


def test_a_batch_is_padded_to_its_own_longest_and_keeps_only_what_is_learnt(tokenizer: Any) -> None:
    import torch

    from runners.lora.data import IGNORE, Collate, Example

    short = Example(torch.tensor([5, 6, 7], dtype=torch.int32), torch.tensor([IGNORE, 6, 7], dtype=torch.int32))
    long = Example(
        torch.tensor([8, 9, 10, 11, 12], dtype=torch.int32),
        torch.tensor([IGNORE, IGNORE, IGNORE, 11, 12], dtype=torch.int32),
    )
    batch = Collate(0)([short, long])
    assert batch.ids.tolist() == [[5, 6, 7, 0, 0], [8, 9, 10, 11, 12]]
    assert batch.keep.tolist() == [0, 1, 2, 3]
    assert batch.labels.tolist() == [[6, 7, IGNORE, IGNORE], [IGNORE, IGNORE, 11, 12]]
    assert (batch.tokens, batch.padded, batch.targets, batch.samples) == (8, 10, 4, 2)
    assert Collate(0)([long]).keep.tolist() == [2, 3]


def test_the_loss_of_a_padded_batch_is_that_of_its_rows(model: Path) -> None:
    """Right padding reaches no token before it, so no mask is needed; logits only where something is learnt."""
    import torch
    from transformers import AutoModelForCausalLM

    from runners.lora.data import IGNORE, Collate, Example
    from runners.lora.model import Wrapped

    torch.manual_seed(3)
    items = []
    for length in (4, 9, 17):
        ids = torch.randint(10, 200, (length,), dtype=torch.int32)
        labels = ids.clone()
        labels[: length // 2] = IGNORE
        items.append(Example(ids, labels))
    core = AutoModelForCausalLM.from_pretrained(str(model)).eval()
    wrapped = Wrapped(core, core, sharded=False, device="cpu", bf16=False, picks=True)
    with torch.no_grad():
        together = wrapped.loss_sum(Collate(0)(items), training=False)
        alone = sum(float(wrapped.loss_sum(Collate(0)([item]), training=False)) for item in items)
        whole = 0.0
        for item in items:  # as transformers itself counts, over all logits
            mean = core(input_ids=item.ids[None].long(), labels=item.labels[None].long()).loss
            whole += float(mean) * item.targets
        wrapped.picks = False
        unpicked = wrapped.loss_sum(Collate(0)(items), training=False)
    assert float(together) == pytest.approx(alone, rel=1e-5)
    assert float(together) == pytest.approx(whole, rel=1e-5)
    assert float(unpicked) == pytest.approx(whole, rel=1e-5)


def test_each_example_is_read_once_an_epoch_in_another_order_and_a_resumed_epoch_goes_on() -> None:
    import torch

    from runners.lora.data import Batch, Example, Examples, Loader, share

    def first(batch: Batch) -> list[int]:
        return [int(row[0]) for row in batch.ids]

    examples = Examples([Example(*[torch.tensor([at, 1], dtype=torch.int32)] * 2) for at in range(12)])
    ranks = [Loader.make(examples, world=2, rank=rank, batch=4, seed=1, pad=0, pin=False) for rank in range(2)]
    orders = []
    for epoch in range(2):
        read = [[at for batch in loader.epoch(epoch) for at in first(batch)] for loader in ranks]
        assert sorted(read[0] + read[1]) == list(range(12))
        orders.append(read)
    assert orders[0] != orders[1]
    assert [at for batch in ranks[0].epoch(1, skip=1) for at in first(batch)] == orders[1][0][4:]
    shares = [list(share(examples, world=5, rank=rank, batch=2, pad=0)) for rank in range(5)]
    assert {len(batches) for batches in shares} == {2}
    assert sum(batch.samples for batches in shares for batch in batches) == 12


def test_the_rate_warms_up_and_comes_down_to_nothing() -> None:
    from runners.lora.loop import learning_rate
    from runners.schema import LoraRunner

    def rates(schedule: str) -> list[float]:
        runner = LoraRunner.model_validate({"lr": 1.0, "warmup_steps": 4, "schedule": schedule})
        return [learning_rate(runner, step, 8) for step in range(1, 9)]

    assert rates("linear") == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 0.75, 0.5, 0.25])
    assert rates("constant") == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0])
    half = [0.5 * (1 + math.cos(math.pi * at / 4)) for at in range(4)]
    assert rates("cosine") == pytest.approx([0.25, 0.5, 0.75, 1.0, *half])


# --- what cannot be used


def refused(tmp_path: Path, cache: Path, **runner: Any) -> str:
    """What the data stage and the loading of the model say."""
    from runners import lora
    from runners.lora import model, sources

    asked = context(tmp_path / "out", cache, **runner)
    config: Any = asked.config.runner

    def start() -> None:
        lora.prepare(asked)
        model.build(config, sources.find(asked.config, config, cache).model, asked.process, "cpu")

    with pytest.raises(ConfigurationError) as caught:
        start()
    return str(caught.value)


def test_a_wrong_target_module_lists_the_models(tmp_path: Path, cache: Path) -> None:
    told = refused(tmp_path, cache, target_modules=["q_proj", "query_key_value"])
    assert "the model has no module 'query_key_value'" in told
    assert "It has down_proj, embed_tokens, gate_proj, k_proj, lm_head, o_proj, q_proj, up_proj, v_proj." in told


def test_a_sequence_beyond_the_models_is_refused(tmp_path: Path, cache: Path) -> None:
    from runners.lora import model, sources
    from runners.schema import RunConfig

    config = RunConfig.model_validate(body(seq_len=129) | {"model": MODEL | {"max_sequence": 128}})
    runner: Any = config.runner
    asked = context(tmp_path, cache)
    with pytest.raises(ConfigurationError, match=r"runner.seq_len=129 is beyond the 128 tokens .* or less"):
        model.build(runner, sources.find(config, runner, cache).model, asked.process, "cpu")


@pytest.mark.parametrize(
    ("gone", "words"),
    [
        ("config.json", "is no whole model: config.json is missing"),
        ("model.safetensors", "is no whole model: model.safetensors is missing"),
        ("tokenizer.json", "holds no tokenizer: none of tokenizer.json, tokenizer.model, vocab.json"),
    ],
)
def test_a_missing_local_file_is_named(tmp_path: Path, cache: Path, model: Path, gone: str, words: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for path in model.iterdir():
        if path.name != gone:
            (folder / path.name).symlink_to(path)
    told = refused(tmp_path, cache, model_local_dir=str(folder), local_files_only=True)
    assert words in told
    assert str(folder) in told


def test_code_that_a_model_brings_is_neither_run_nor_asked_about(
    tmp_path: Path, cache: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda _prompt: "y")  # what transformers asks where nothing is said
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    own = {"model_type": "own", "auto_map": {"AutoConfig": "own.Own"}}
    (folder / "config.json").write_text(json.dumps(json.loads((folder / "config.json").read_bytes()) | own))
    (folder / "own.py").write_text(
        f"import pathlib\npathlib.Path({str(tmp_path / 'ran')!r}).touch()\nclass Own: ...\n"
    )
    assert "contains custom code" in refused(tmp_path, cache, model_local_dir=str(folder))
    assert not (tmp_path / "ran").exists()


def test_a_missing_shard_and_a_missing_folder_are_named(tmp_path: Path, cache: Path, model: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for path in model.iterdir():
        (folder / path.name).symlink_to(path)
    shards = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(shards))
    (folder / "model-00001-of-00002.safetensors").touch()
    assert "model-00002-of-00002.safetensors is missing" in refused(tmp_path, cache, model_local_dir=str(folder))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": 1}}))
    assert "a readable model.safetensors.index.json" in refused(tmp_path, cache, model_local_dir=str(folder))
    away = refused(tmp_path, cache, model_local_dir=str(tmp_path / "away"))
    assert f"runner.model_local_dir: the folder {tmp_path / 'away'} is not there" in away


def test_a_model_that_offline_mode_does_not_hold_is_named(tmp_path: Path, cache: Path) -> None:
    told = refused(tmp_path, cache, model="some-lab/not-here-3b", local_files_only=True)
    assert "runner.model=some-lab/not-here-3b: offline mode is on" in told


def test_a_broken_line_is_named_or_left_out(tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from runners import lora
    from runners.stages import Context

    path = tmp_path / "rows.jsonl"
    good = json.dumps({"prompt": "1 + 1 =", "completion": " 2"})
    silent = json.dumps(talk("is anybody there?"))
    path.write_text("\n".join([good, '{"prompt": "1 + 2 =",', good, silent, good]) + "\n")
    told = refused(tmp_path, cache, data=str(path))
    assert f"{path}:2: the line is no JSON" in told
    path.write_text("\n".join([good, good, silent, good]) + "\n")
    told = refused(tmp_path, cache, data=str(path))
    assert f"{path}:3: messages hold no answer of the role assistant" in told
    asked = context(tmp_path / "out", cache, data=str(path), validation_split=0.0)
    config = asked.config.model_copy(update={"data": asked.config.data.model_copy(update={"on_error": "skip"})})
    capsys.readouterr()
    lora.prepare(Context(config, asked.process, asked.folders))
    line = next(line for line in capsys.readouterr().out.splitlines() if '"code":"data"' in line)
    data = json.loads(line.partition("@ekvi ")[2])
    assert (data["level"], data["data"]["train_samples"], data["data"]["skipped"]) == ("warning", 3, 1)


def test_the_data_sections_records_are_read_by_their_columns(
    tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from runners import lora
    from runners.schema import RunConfig
    from runners.stages import Context

    path = tmp_path / "sums.csv"
    path.write_text("question,answer\n" + "".join(f"{at} + 1 =, {at + 1}\n" for at in range(5)))
    fields = {"prompt": "question", "completion": "answer"}
    section = {"data": {"source": "csv", "paths": [str(path)], "fields": fields, "samples": 4}}
    asked = context(tmp_path / "out", cache)
    config = RunConfig.model_validate(body(data="section", validation_split=0.0) | section)
    lora.prepare(Context(config, asked.process, asked.folders))
    line = next(line for line in capsys.readouterr().out.splitlines() if '"code":"data"' in line)
    assert json.loads(line.partition("@ekvi ")[2])["data"]["train_samples"] == 4


def test_data_without_anything_to_learn_is_refused(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n")
    assert f"{path} holds nothing to train on" in refused(tmp_path, cache, data=str(path))
    path.write_text(json.dumps({"prompt": "one and two and three and four " * 9, "completion": " 2"}) + "\n")
    told = refused(tmp_path, cache, data=str(path), seq_len=8)
    assert "1 have nothing to learn within 8 tokens" in told
    assert "larger runner.seq_len" in told
    assert f"{tmp_path / 'away'} cannot be read" in refused(tmp_path, cache, data=str(tmp_path / "away"))


def test_another_number_of_processes_is_refused(tmp_path: Path, cache: Path) -> None:
    from runners import lora
    from runners.process import Process
    from runners.stages import Context

    asked = context(tmp_path, cache, processes=2, target_modules=EVERYWHERE)
    with pytest.raises(ConfigurationError, match=r"3 processes started, but runner.processes is 2"):
        lora.run(Context(asked.config, Process(rank=0, world=3, launched=True), asked.folders))


@pytest.mark.parametrize(
    ("runner", "words"),
    [
        ({"lora": False, "merge": True}, "runner.merge is for adapters"),
        ({"target_loss": 1.0, "validation_split": 0.0}, "runner.target_loss needs runner.validation"),
        ({"target_modules": []}, "at least 1 item"),
    ],
)
def test_keys_that_do_not_fit_together_are_refused(runner: dict[str, Any], words: str) -> None:
    from pydantic import ValidationError

    from runners.schema import RunConfig

    with pytest.raises(ValidationError, match=words):
        RunConfig.model_validate(body(**ADAPTERS | runner))
