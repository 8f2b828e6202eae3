"""Records become token ids with labels; batches are padded to their own longest sequence."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from runners.data.records import Message, OnError, Record, RecordError, Skips, wrong
from runners.errors import ConfigurationError

IGNORE = -100  # a label that is not learnt
# For a tokenizer that brings no chat template of its own.
PLAIN_CHAT = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


@dataclass(frozen=True)
class Example:
    """One sequence: int32 [length] each; a label is the id itself, or IGNORE."""

    ids: torch.Tensor
    labels: torch.Tensor

    @property
    def targets(self) -> int:
        """How many tokens are predicted and learnt: the first has nothing before it."""
        return int((self.labels[1:] != IGNORE).sum())


@dataclass(frozen=True)
class Batch:
    """Sequences padded on the right to the longest: `ids` int64 [batch, length].

    Nothing after a causal model's token reaches it, so right padding needs no mask. `keep` int64 [k] are the
    positions before which at least one row learns, `labels` int64 [batch, k] what follows there. `tokens` counts
    real ones.
    """

    ids: torch.Tensor
    keep: torch.Tensor
    labels: torch.Tensor
    tokens: int
    samples: int
    targets: int

    @property
    def padded(self) -> int:
        """Tokens that the model works through, padding included."""
        return self.ids.numel()

    def to(self, device: str) -> Batch:
        """The same on a device."""
        return self._with(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Batch:
        """The loader's hook: page-locked, so that the copy to a GPU does not wait."""
        return self._with(lambda tensor: tensor.pin_memory())

    def _with(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
        return replace(self, ids=change(self.ids), keep=change(self.keep), labels=change(self.labels))


@dataclass
class Examples(Dataset[Example]):
    """The examples of one file, and what was left out or cut to make them."""

    items: list[Example] = field(default_factory=list)
    cut: int = 0  # longer than seq_len
    dropped: int = 0  # nothing to learn within seq_len
    skips: Skips = field(default_factory=Skips)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Example:
        return self.items[index]

    @property
    def tokens(self) -> int:
        """Tokens of all examples."""
        return sum(len(item.ids) for item in self.items)

    @property
    def targets(self) -> int:
        """Tokens that are learnt."""
        return sum(item.targets for item in self.items)

    def parted(self, share: float, seed: int) -> tuple[Examples, Examples]:
        """Two parts, the second with `share` of the examples, at least one where there are two; the order stays."""
        count = min(len(self.items) - 1, max(1, round(len(self.items) * share))) if share else 0
        if count < 1:
            return self, Examples()
        chosen = set(random.Random(seed).sample(range(len(self.items)), count))  # noqa: S311 - a split, no secret
        kept = [item for at, item in enumerate(self.items) if at not in chosen]
        return Examples(kept, self.cut, self.dropped, self.skips), Examples([self.items[at] for at in sorted(chosen)])

    def digest(self) -> str:
        """SHA-256 (hex) over ids and labels in order."""
        total = hashlib.sha256()
        for item in self.items:
            total.update(len(item.ids).to_bytes(8, "little"))
            total.update(item.ids.numpy().tobytes())
            total.update(item.labels.numpy().tobytes())
        return total.hexdigest()


class Encoder:
    """Turns records into examples by one tokenizer. What a user, a system or a prompt says is not learnt."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.plain = not getattr(tokenizer, "chat_template", None)
        end = getattr(tokenizer, "eos_token_id", None)  # no tokenizer where there is no text
        self.end = [] if end is None else [int(end)]

    def encode(self, record: Record) -> tuple[list[int], list[int]]:
        """Ids and labels, uncut. Raises RecordError for a conversation that the template refuses."""
        if record.messages is not None:
            return self._chat(list(record.messages))
        if record.text is not None:
            ids = [*self._ids(record.text, marks=True), *self.end]
            return ids, list(ids)
        head = self._ids(record.prompt or "", marks=True)
        tail = [*self._ids(record.completion or "", marks=False), *self.end]
        return head + tail, [IGNORE] * len(head) + tail

    def _ids(self, text: str, *, marks: bool) -> list[int]:
        """`marks`: whether the tokenizer may put its begin mark before; its end mark is ours to add."""
        ids: list[int] = self.tokenizer(text, add_special_tokens=marks)["input_ids"]
        return ids[:-1] if marks and self.end and ids[-1:] == self.end and len(ids) > 1 else ids

    def _chat(self, messages: list[Message]) -> tuple[list[int], list[int]]:
        """Each answer is learnt, from after the mark that opens it to the mark that closes it."""
        ids = self._template(messages)
        labels = [IGNORE] * len(ids)
        for at, message in enumerate(messages):
            if message["role"] == "assistant":
                head = self._template(messages[:at], ask=True) if at else []
                begin, end = _alike(head, ids), _alike(self._template(messages[: at + 1]), ids)
                labels[begin:end] = ids[begin:end]
        if all(label == IGNORE for label in labels):
            raise RecordError("messages hold no answer of the role assistant, so there is nothing to learn.")
        if self.plain:
            ids, labels = ids + self.end, labels + self.end
        return ids, labels

    def _template(self, messages: list[Message], *, ask: bool = False) -> list[int]:
        from jinja2 import TemplateError

        try:
            ids: list[int] = self.tokenizer.apply_chat_template(
                messages,
                tokenize=True,
                add_generation_prompt=ask,
                return_dict=False,
                chat_template=PLAIN_CHAT if self.plain else None,
            )
        except TemplateError as error:
            raise RecordError(f"messages do not fit the model's chat template: {error}.") from error
        return ids


def _alike(first: Sequence[int], second: Sequence[int]) -> int:
    """How many ids two sequences begin with alike: a template may close a conversation in its own way."""
    for at, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return at
    return min(len(first), len(second))


def examples(records: Iterable[Record], encoder: Encoder, seq_len: int, on_error: OnError, skips: Skips) -> Examples:
    """All records as examples of at most `seq_len` tokens.

    Raises ConfigurationError, with file and line, for a record that cannot be encoded, unless `on_error` is skip.
    """
    made = Examples(skips=skips)
    for record in records:
        try:
            ids, labels = encoder.encode(record)
        except RecordError as error:
            wrong(f"{record.where}: {error}", on_error, skips)
            continue
        _add(made, ids, labels, seq_len)
    return made


def ready(rows: Iterable[Mapping[str, Any]], seq_len: int) -> Examples:
    """Rows of {"input_ids", "labels"} as examples; without labels all is learnt."""
    made = Examples()
    for row in rows:
        _add(made, row["input_ids"], row.get("labels", row["input_ids"]), seq_len)
    return made


def _add(made: Examples, ids: Sequence[int], labels: Sequence[int], seq_len: int) -> None:
    made.cut += len(ids) > seq_len
    cut = (torch.as_tensor(part[:seq_len]).to(torch.int32) for part in (ids, labels))
    example = Example(*cut)
    if example.targets:
        made.items.append(example)
    else:
        made.dropped += 1


def nothing(path: str, made: Examples, seq_len: int) -> ConfigurationError:
    """The error for a file without one example."""
    why = f": of its records {made.dropped} have nothing to learn within {seq_len} tokens" if made.dropped else ""
    left = f", {made.skips.count} are broken ({made.skips.first})" if made.skips.count else ""
    return ConfigurationError(
        f"{path} holds nothing to train on{why}{left}.",
        hint="Take other data, or a larger runner.seq_len." if made.dropped else "Put at least one record into it.",
        every_rank=True,
    )


class Collate:
    """The loader's hook: examples to a Batch."""

    def __init__(self, pad: int) -> None:
        self.pad = pad

    def __call__(self, items: Sequence[Example]) -> Batch:
        """Pad on the right to the longest of `items`."""
        length = max(len(item.ids) for item in items)
        ids = torch.full((len(items), length), self.pad, dtype=torch.int64)
        labels = torch.full((len(items), length), IGNORE, dtype=torch.int64)
        for row, item in enumerate(items):
            ids[row, : len(item.ids)] = item.ids
            labels[row, : len(item.ids)] = item.labels
        following = labels[:, 1:]
        keep = (following != IGNORE).any(dim=0).nonzero().flatten()
        return Batch(
            ids,
            keep,
            following[:, keep],
            tokens=sum(len(item.ids) for item in items),
            samples=len(items),
            targets=sum(item.targets for item in items),
        )


def empty(pad: int) -> Batch:
    """A batch that counts for nothing: where all ranks must run the model together, one may have no more to do."""
    ids = torch.full((1, 2), pad, dtype=torch.int64)
    return Batch(ids, torch.zeros(1, dtype=torch.int64), torch.full((1, 1), IGNORE), 0, 0, 0)


@dataclass(frozen=True)
class Loader:
    """The training's batches of this rank: another order each epoch, the same whatever the rank."""

    dataset: Examples
    sampler: DistributedSampler[Example]
    batch: int
    collate: Callable[[Sequence[Example]], Batch]
    pin: bool

    @classmethod
    def make(cls, dataset: Examples, *, world: int, rank: int, batch: int, seed: int, pad: int, pin: bool) -> Loader:
        """As many batches on each rank: the last few are filled up with examples from the epoch's start."""
        sampler = DistributedSampler(dataset, num_replicas=world, rank=rank, shuffle=True, seed=seed)
        return cls(dataset, sampler, batch, Collate(pad), pin)

    def __len__(self) -> int:
        """Batches an epoch."""
        return math.ceil(len(self.sampler) / self.batch)

    def epoch(self, number: int, skip: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, counted from 0, without its first `skip`."""
        self.sampler.set_epoch(number)
        indices = list(self.sampler)
        groups = [indices[at : at + self.batch] for at in range(0, len(indices), self.batch)][skip:]
        return iter(DataLoader(self.dataset, batch_sampler=groups, collate_fn=self.collate, pin_memory=self.pin))


def share(dataset: Examples, *, world: int, rank: int, batch: int, pad: int) -> Iterator[Batch]:
    """The validation's batches of this rank: each example on one rank only, and on each rank as many batches."""
    collate = Collate(pad)
    mine = dataset.items[rank::world]
    rounds = -(-len(dataset.items) // (world * batch))
    for at in range(rounds):
        items = mine[at * batch : (at + 1) * batch]
        yield collate(items) if items else empty(pad)
