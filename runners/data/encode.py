"""Documents to tokens by several processes: in order whatever their number, and a bounded part in memory."""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from runners.data.corpus import Document
from runners.errors import RunnerError

if TYPE_CHECKING:
    from runners.data.tokenizer import Tokenizer

WORKERS_MOST = 32  # where data.workers does not say
_CHUNK = 1 << 20  # characters handed over at once
_AHEAD = 3  # chunks a worker that are on their way
_tokenizer: Any = None  # a worker's own


def workers(asked: int | None) -> int:
    """How many processes tokenize: as asked, else one a core of this machine that this process may use."""
    return asked or min(WORKERS_MOST, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)


def encoded(
    tokenizer: Tokenizer, documents: Iterable[Document], asked: int | None = None
) -> Iterator[tuple[Document, Any]]:
    """Each document with its ids (int32 [tokens], ended by the end-of-document id), in the order of `documents`.

    One worker is this process; so it is where all fits one chunk. Raises RunnerError where a worker died.
    """
    chunks = _chunks(documents)
    first = list(_take(chunks, 2))
    count = workers(asked)
    chunks = chain(first, chunks)
    if count == 1 or len(first) < 2:
        with _one_thread():
            for chunk in chunks:
                yield from zip(chunk, encode(tokenizer, chunk), strict=True)
        return
    with _one_thread():  # the workers inherit it: each is one core's worth
        spawn = multiprocessing.get_context("spawn")  # torch's threads may be running here: a fork could hang
        with ProcessPoolExecutor(count, mp_context=spawn, initializer=_start, initargs=(tokenizer,)) as pool:
            try:
                yield from _in_turn(pool, chunks, count * _AHEAD)
            except BrokenProcessPool as error:
                raise RunnerError(
                    "a process that tokenizes was killed, for lack of memory perhaps.",
                    hint="Take fewer: data.workers=1.",
                ) from error


def _in_turn(
    pool: ProcessPoolExecutor, chunks: Iterator[list[Document]], ahead: int
) -> Iterator[tuple[Document, Any]]:
    waiting: deque[tuple[list[Document], Future[list[Any]]]] = deque()
    try:
        for chunk in chunks:
            waiting.append((chunk, pool.submit(_work, [(d.text, d.marked) for d in chunk])))
            if len(waiting) >= ahead:
                done, result = waiting.popleft()
                yield from zip(done, result.result(), strict=True)
        while waiting:
            done, result = waiting.popleft()
            yield from zip(done, result.result(), strict=True)
    finally:
        for _chunk, result in waiting:
            result.cancel()


def _chunks(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Documents in groups of about _CHUNK characters; all of a group alike in whether they are marked."""
    chunk: list[Document] = []
    size = 0
    for document in documents:
        if chunk and (size >= _CHUNK or chunk[0].marked != document.marked):
            yield chunk
            chunk, size = [], 0
        chunk.append(document)
        size += len(document.text)
    if chunk:
        yield chunk


def _take(chunks: Iterator[list[Document]], count: int) -> Iterator[list[Document]]:
    for _ in range(count):
        try:
            yield next(chunks)
        except StopIteration:
            return


def encode(tokenizer: Tokenizer, chunk: list[Document]) -> list[Any]:
    """The ids of documents that are alike in whether they are marked: int32 [tokens] each, the end among them."""
    tokenizer.backend.encode_special_tokens = not chunk[0].marked  # only a template's marks are more than text
    try:
        found = tokenizer.encode_batch([document.text for document in chunk])
    finally:
        tokenizer.backend.encode_special_tokens = True
    return [np.array([*ids, tokenizer.eos_id], dtype=np.int32) for ids in found]


def _start(tokenizer: Tokenizer) -> None:
    global _tokenizer
    _tokenizer = tokenizer


def _work(texts: list[tuple[str, bool]]) -> list[Any]:
    return encode(_tokenizer, [Document("", text, marked) for text, marked in texts])


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let `tokenizers` use one thread: its own would take all cores in each process."""
    before = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ["TOKENIZERS_PARALLELISM"]
        else:
            os.environ["TOKENIZERS_PARALLELISM"] = before
