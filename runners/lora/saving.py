"""Epoch folders: weights as Hugging Face reads them, the tokenizer, and what it takes to go on from there.

A folder is complete or absent: it is written beside its place and renamed last. All ranks call these together.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from runners.errors import ConfigurationError, RunnerError
from runners.lora.logs import log
from runners.lora.model import Wrapped
from runners.lora.progress import Best, Progress
from runners.process import Process
from runners.saved import Plain, Reader
from runners.schema import LoraRunner

STATE, PROGRESS, BEST = "state", "progress.json", "best"
_KINDS = ("epoch-", "step-")


@dataclass
class Saver:
    """Writes and finds the folders of one training. `made_of` is what a state must agree with to go on from it."""

    out: Path
    runner: LoraRunner
    process: Process
    tokenizer: Any
    made_of: Mapping[str, Any]

    def save(self, name: str, model: Wrapped, optimizer: Any, progress: Progress, *, rank: bool = False) -> None:
        """Write the folder `name`; with `rank` it may become the best one.

        Raises RunnerError where the disk refuses; what was saved before is left as it was.
        """
        if rank:
            progress.best = self._better(name, progress)
        part = self.out / f".{name}.part"
        weights = self._weights(model)
        state = self._state(model, optimizer)
        try:
            with self._together(name, progress):
                if self.process.first:
                    self._clear(part)
                    self._write(part, model, weights, progress)
            with self._together(name, progress):
                _dcp().save(state, checkpoint_id=part / STATE / "shards")
            with self._together(name, progress):
                if self.process.first:
                    _settle(part)
                    _into_place(part, self.out / name)
                    self._point(progress.best)
                    self._prune(progress.best)
        finally:
            if self.process.first:
                shutil.rmtree(part, ignore_errors=True)
        log.info("[MODEL] saved %s", name)

    def restore(self, model: Wrapped, optimizer: Any) -> Progress | None:
        """Go on from what `runner.resume` names, or None for a new start.

        Raises ConfigurationError for a folder that is none of a training like this one.
        """
        chosen: list[Any] = [self._found() if self.process.first else None]
        dist.broadcast_object_list(chosen, src=0)  # another node may see another folder: better it fails than differs
        folder = chosen[0]
        if folder is None:
            return None
        progress = self._read(folder)
        state = self._state(model, optimizer)
        options = _options(strict=False)
        try:
            _dcp().load(state, storage_reader=Reader(folder / STATE / "shards"), planner=Plain())
        except Exception as error:  # its exception wraps whatever went wrong on whichever rank
            raise RunnerError(f"{folder} cannot be resumed from: {_told(error)}.", every_rank=True) from error
        from torch.distributed.checkpoint.state_dict import set_model_state_dict, set_optimizer_state_dict

        set_model_state_dict(model.core, state["model"], options=options)
        set_optimizer_state_dict(model.core, optimizer, state["optimizer"], options=options)
        log.info("[STEP] resume: %s, after step %d", folder, progress.step)
        if progress.best is not None and not (self.out / progress.best.folder).is_dir():
            best = folder.parent / progress.best.folder
            progress.best = Best(str(best), progress.best.step, progress.best.epoch, progress.best.loss)
        return progress

    def best(self, progress: Progress) -> Path | None:
        """The folder of the best weights."""
        return None if progress.best is None else self.out / progress.best.folder

    def _better(self, name: str, progress: Progress) -> Best:
        known = progress.best.loss if progress.best else None
        now = progress.validation if progress.evaluated_at == progress.step else None
        if progress.best is not None and known is not None and (now is None or now >= known):
            return progress.best
        return Best(name, progress.step, progress.epoch, now)

    def _weights(self, model: Wrapped) -> dict[str, Any]:
        """All trained weights, whole, on rank 0's host; whole models also what is not trained."""
        from torch.distributed.checkpoint.state_dict import get_model_state_dict

        options = _options(full_state_dict=model.sharded, cpu_offload=model.sharded)
        found: dict[str, Any] = get_model_state_dict(model.core, options=options)
        return found

    def _state(self, model: Wrapped, optimizer: Any) -> dict[str, Any]:
        from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict

        return {
            "model": get_model_state_dict(model.core, options=_options()),
            "optimizer": get_optimizer_state_dict(model.core, optimizer, options=_options()),
        }

    def _write(self, part: Path, model: Wrapped, weights: dict[str, Any], progress: Progress) -> None:
        """The weights and the tokenizer, and how far the training is."""
        (part / STATE).mkdir(parents=True)
        if self.runner.lora:
            model.core.save_pretrained(str(part), state_dict=weights, save_embedding_layers=False)
            with suppress(OSError):
                (part / "README.md").unlink()  # peft's template of a model card, unfilled
        else:
            kept = torch.bfloat16 if self.runner.bf16 else torch.float32
            double = again(model.core)
            cast = {
                name: value.to(kept) if value.is_floating_point() else value
                for name, value in weights.items()
                if name not in double
            }
            model.core.save_pretrained(str(part), state_dict=cast)
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(str(part))
        told = {"schema": "ekvi.lora-state/1", "made_of": dict(self.made_of), "progress": progress.as_json()}
        (part / STATE / PROGRESS).write_text(json.dumps(told, indent=1) + "\n")

    @contextmanager
    def _together(self, name: str, progress: Progress) -> Iterator[None]:
        """One rank's trouble with the disk is every rank's, said by rank 0."""
        problem = None
        try:
            yield
        except Exception as error:
            if not _disk(error):
                raise
            problem = _told(error)
        problems: list[str | None] = [None] * self.process.world
        dist.all_gather_object(problems, problem)
        worst = next((told for told in problems if told), None)
        if worst is not None:
            older = [folder.name for folder in self._folders()]
            kept = f"{older[-1]} is kept whole" if older else "there is none before it"
            raise RunnerError(
                f"{self.out / name} cannot be written after step {progress.step}: {worst}; {kept}.",
                hint="Make room, then go on with runner.resume=auto.",
                every_rank=True,
            )

    def _clear(self, part: Path) -> None:
        """Take away what a killed process left half written."""
        self.out.mkdir(parents=True, exist_ok=True)
        for stale in (*self.out.glob(".epoch-*.part"), *self.out.glob(".step-*.part"), part):
            shutil.rmtree(stale, ignore_errors=True)

    def _folders(self) -> list[Path]:
        """Folders that can be gone on from, the oldest first."""
        found = [path.parent.parent for path in self.out.glob(f"*/{STATE}/{PROGRESS}")]
        mine = [path for path in found if path.name.startswith(_KINDS) and not path.is_symlink()]
        return sorted(mine, key=lambda path: _step(path) or 0)

    def _found(self) -> Path | None:
        if self.runner.resume == "never":
            return None
        if self.runner.resume == "auto":
            return next(reversed(self._folders()), None)
        return Path(os.path.expanduser(self.runner.resume)).absolute()

    def _read(self, folder: Path) -> Progress:
        if not (folder / STATE / PROGRESS).is_file():
            raise ConfigurationError(
                f"runner.resume: {folder} holds no state to go on from ({STATE}/{PROGRESS} is missing).",
                hint="Name a folder epoch-<n> or step-<n>; of older ones only the weights are kept (runner.keep).",
                every_rank=True,
            )
        try:
            told = json.loads((folder / STATE / PROGRESS).read_bytes())
            progress, made_of = Progress.of_json(told["progress"]), dict(told["made_of"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(
                f"{folder}/{STATE}/{PROGRESS} cannot be read: {error}.", every_rank=True
            ) from error
        for key, value in self.made_of.items():
            within = key in ("data", "batch_of_all")  # between epochs these may change
            if made_of.get(key) != value and (progress.batch or not within):
                raise ConfigurationError(
                    f"{folder} was saved with another {key} ({made_of.get(key)}, now {value}): it cannot go on.",
                    hint="Set it as it was, or runner.resume=never for a new start.",
                    every_rank=True,
                )
        return progress

    def _point(self, best: Best | None) -> None:
        """`best` leads to the best folder: a link, or a copy where the file system has none."""
        if best is None or Path(best.folder).is_absolute():
            return
        part, link = self.out / f".{BEST}.part", self.out / BEST
        with suppress(OSError):
            part.unlink()
        shutil.rmtree(part, ignore_errors=True)
        try:
            os.symlink(best.folder, part)
        except OSError:
            shutil.copytree(self.out / best.folder, part, ignore=shutil.ignore_patterns(STATE))
            shutil.rmtree(link, ignore_errors=True)
        os.replace(part, link)

    def _prune(self, best: Best | None) -> None:
        """Keep as many states as asked; an epoch's weights stay, a step's folder goes unless it is the best."""
        for folder in self._folders()[: -self.runner.keep]:
            mine = best is not None and folder.name == best.folder
            gone = folder if folder.name.startswith("step-") and not mine else folder / STATE
            shutil.rmtree(gone, ignore_errors=True)


def again(core: Any) -> set[str]:
    """Names of parameters that are another one too (an embedding as the head): files hold the first alone."""
    every = dict(core.named_parameters(remove_duplicate=False))
    return every.keys() - dict(core.named_parameters()).keys()


def _step(folder: Path) -> int | None:
    try:
        return int(json.loads((folder / STATE / PROGRESS).read_bytes())["progress"]["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _settle(folder: Path) -> None:
    """Force a folder's files to the disk, so that the rename is not there before them."""
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as stream:
                os.fsync(stream.fileno())


def _into_place(part: Path, target: Path) -> None:
    """Rename, over an older folder of that name where there is one."""
    old = target.with_name(f".{target.name}.old.part")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        os.rename(target, old)
    os.rename(part, target)
    shutil.rmtree(old, ignore_errors=True)


def _options(*, strict: bool = True, full_state_dict: bool = False, cpu_offload: bool = False) -> Any:
    from torch.distributed.checkpoint.state_dict import StateDictOptions

    return StateDictOptions(
        ignore_frozen_params=True, strict=strict, full_state_dict=full_state_dict, cpu_offload=cpu_offload
    )


def _dcp() -> Any:
    import torch.distributed.checkpoint as dcp

    return dcp


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error and what it wraps: the checkpoint library keeps each rank's own."""
    yield error
    for inner in (getattr(error, "failures", None) or {}).values():
        if isinstance(inner, tuple) and inner and isinstance(inner[0], BaseException):
            yield from _causes(inner[0])
    if error.__cause__ is not None:
        yield from _causes(error.__cause__)


def _disk(error: BaseException) -> bool:
    """Whether the file system refused."""
    return any(
        isinstance(one, OSError) or (type(one).__name__ == "SafetensorError" and "os error" in str(one).lower())
        for one in _causes(error)
    )


def _told(error: BaseException) -> str:
    """What went wrong, in the system's words where it has some."""
    own = next((one for one in _causes(error) if isinstance(one, OSError) and one.strerror), None)
    if own is not None:
        return str(own.strerror)
    last = list(_causes(error))[-1]
    return (str(last).strip() or type(last).__name__).splitlines()[0].rstrip(".")
