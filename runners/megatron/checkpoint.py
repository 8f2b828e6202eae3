"""Saving a training and going on with it, by torch.distributed.checkpoint.

On disk each parameter is three fp32 tensors of the whole model, `weights.NAME`, `exp_avg.NAME` and `exp_avg_sq.NAME`,
in rectangles as the ranks held them: any other parallel sizes can read them, and any precision. The position in the
data and the learning rate follow from the step; nothing is dropped out, so no generator has a state.
"""

from __future__ import annotations

import pickle
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from runners import checkpoints, sizes, wire
from runners.checkpoints import Shelf
from runners.data.prepare import Entry
from runners.errors import RunnerError
from runners.megatron import layout, state
from runners.megatron.pieces import Reading, Tile, Tiles, Writing
from runners.saved import Reader
from runners.schema import RunConfig
from runners.stages import Context

if TYPE_CHECKING:
    from runners.megatron.train import Training

FOLDER = "checkpoints"
WEIGHTS = "weights."
_STATE_BY = 12  # bytes a parameter on disk
_DTYPES = {"bf16": torch.bfloat16, "fp8": torch.bfloat16, "fp16": torch.float16}


class Saver:
    """What a training loop tells of its steps; all methods but `export` are called on all ranks.

    `step` is the iteration reached so far, `last` the newest good checkpoint of this course. A loss is of the weights
    before its update, so a checkpoint is `unproved` until the next loss is a number: only then older ones go.
    """

    def __init__(self, context: Context, training: Training, entry: Entry, vocab: int) -> None:
        self.context, self.training = context, training
        self.settings = context.config.training.checkpoint
        self.vocab, self.words = vocab, context.config.model.vocab or entry.vocab  # with the padding, and without
        self.course = _course(context.config, entry)
        self.shelf = Shelf(context.folders.out / FOLDER)
        self.state = state.of(training.updates)
        self.step = 0
        self.last: Path | None = None
        self.unproved: int | None = None
        if context.process.first:
            self.shelf.clear()

    def resume(self) -> None:
        """Go on from the checkpoint that `training.checkpoint.resume` stands for, if any.

        Raises ConfigurationError for one that is not there or of another model, RunnerError for a damaged one.
        """
        begin = time.perf_counter()
        path, told = self._agreed(self._find)
        if path is None:
            return
        self._visible(path)
        checkpoints.refuse_other_model(path, told, self.context.config.model.model_dump(mode="json"), self.words)
        tiles = self._tiles()
        with _reading(path):
            dcp.load(dict(tiles), storage_reader=Reader(path), planner=Reading())
        self.state.restored(told["counts"])
        self.step, self.last = told["step"], path
        if self.context.process.first:
            self._told_resumed(path, told, time.perf_counter() - begin)

    def _find(self) -> tuple[Path | None, dict[str, Any]]:
        """The checkpoint to go on from, and what it says of itself."""
        path = checkpoints.find(self.settings.resume, self.shelf)
        if path is None:
            return None, {}
        told = checkpoints.about(path)
        checkpoints.refuse_later(path, told["step"], self.context.config.training.iterations)
        return path, told

    def _told_resumed(self, path: Path, told: dict[str, Any], seconds: float) -> None:
        """Say where the training goes on, and what makes it another course than the one that was saved."""
        iterations = self.context.config.training.iterations
        message = f"goes on after iteration {self.step} of {iterations}, from {path}"
        data = {"step": self.step, "path": str(path), "seconds": seconds}
        wire.emit("diagnostic", level="info", code="resumed", message=message, data=data)
        drifted = checkpoints.drifted(told, self.course) if self.step < iterations else []
        if drifted:
            message = (
                f"the steps from here on see other samples than the saved training's would: {', '.join(drifted)}"
            )
            wire.emit("diagnostic", level="warning", code="resume_differs", message=message, data={"keys": drifted})
        if self.step < iterations and told.get("padded_vocab", self.vocab) != self.vocab:
            saved = told["padded_vocab"]
            message = f"the vocabulary is padded to {self.vocab} in place of {saved}: the loss counts the padding"
            padding = {"saved": saved, "now": self.vocab}
            wire.emit("diagnostic", level="warning", code="resume_padding", message=message, data=padding)

    def after(self, number: int, loss: float | None) -> tuple[float, RunnerError | None]:
        """Iteration `number` was made, with `loss` (known on the last pipeline stage only, None for no number).

        Saves where that is due. Returns the seconds that took, 0 where nothing was saved, and why the training cannot
        go on, where it cannot; the same on all ranks.
        """
        self.step = number
        stops = self.context.config.training.stop_on_nan
        if stops and self._any_stage(self._knows_loss() and loss is None):
            return 0.0, self._stopped(f"the loss of iteration {number} is not a finite number")
        self._prove()
        if not self._due(number):
            return 0.0, None
        self.training.backend.synchronise()
        begin = time.perf_counter()
        tiles = self._tiles()
        if self._any(not _finite(tiles)):
            what = f"the weights or the optimizer's moments after iteration {number} are not finite"
            if stops:
                return time.perf_counter() - begin, self._stopped(what)
            self._told_unsaved(number, what)
            return time.perf_counter() - begin, None
        try:
            self._save(number, tiles, begin)
        except RunnerError as error:
            return time.perf_counter() - begin, error
        return time.perf_counter() - begin, None

    def _due(self, number: int) -> bool:
        """Whether iteration `number` is saved: each `save_every`-th, and the last of a training that saves at all."""
        every = self.settings.save_every
        last = number == self.context.config.training.iterations
        return (every is not None and (number % every == 0 or last)) or (last and self.settings.export_hf)

    def _knows_loss(self) -> bool:
        stages = self.training.groups.pp
        return bool(stages.rank() == stages.size() - 1)

    def _any_stage(self, here: bool) -> bool:
        """Whether `here` on any stage of the pipeline; the other ranks know the same losses already."""
        return here if self.training.groups.pp.size() == 1 else self._any(here, self.training.groups.pp)

    def _any(self, here: bool, group: Any = None) -> bool:
        """Whether `here` on any rank."""
        flag = torch.tensor(int(here), device=self.training.backend.device)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=group)
        return bool(flag.item())

    def _prove(self) -> None:
        """The loss after the newest checkpoint is a number, or there will be none: that one stays, older ones go."""
        if self.unproved is not None:
            self.last = self.shelf.path(self.unproved)
            if self.context.process.first:
                with suppress(OSError):  # what stays too long costs room, and no more
                    self.shelf.prune(self.unproved, self.settings.keep)
            self.unproved = None

    def _stopped(self, what: str) -> RunnerError:
        """The error that ends a training whose numbers are none."""
        if self.unproved is not None and self.context.process.first:
            with suppress(OSError):
                self.shelf.withdraw(self.unproved, self.last)
        if self.last is not None:
            kept = f"the last good checkpoint is kept: {self.last}"
            hint = "Start again from there with a lower training.learning_rate"
        else:
            kept = "no good checkpoint was saved before"
            hint = "Lower training.learning_rate or lengthen its warm-up"
        return RunnerError(
            f"{what}, so the training stopped; {kept}.",
            hint=f"{hint}; training.stop_on_nan=false would skip such updates and go on.",
            every_rank=True,
        )

    def _told_unsaved(self, number: int, what: str) -> None:
        if self.context.process.first:
            message = f"{what}: not saved"
            wire.emit("diagnostic", level="warning", code="unsaved", message=message, data={"step": number})

    def _tiles(self) -> Tiles:
        """This rank's state by its names on disk."""
        tiles: Tiles = {}
        tensor = self.training.groups.tp
        chunks = [layout.unwrapped(chunk) for chunk in self.training.chunks]
        names = {
            id(parameter): (name, chunk.config.gated_linear_unit)
            for chunk in chunks
            for name, parameter in layout.named(chunk)
        }
        for run in self.state.runs():
            name, gated = names[id(run.parameter)]
            where = layout.place_of(name, run.parameter, tensor.rank(), tensor.size(), gated=gated)
            copy = bool(getattr(run.parameter, "shared", False))  # the owner of tied embeddings writes them
            for piece in layout.pieces(tuple(run.parameter.shape), where, run.begin, run.end):
                at = piece.start - run.begin
                for kind in ("weights", "exp_avg", "exp_avg_sq"):
                    memory = getattr(run, kind)[at : at + piece.count].view(piece.sizes)
                    tile = Tile(where.shape, piece.offset, memory, writes=not copy)
                    tiles.setdefault(f"{kind}.{name}", []).append(tile)
        return tiles

    def _save(self, number: int, tiles: Tiles, begin: float) -> None:
        """Write the checkpoint of iteration `number`; RunnerError, the same on all ranks, where that fails."""
        part: Path = self._agreed(lambda: self._begin(number))
        try:
            self._visible(part)
            with self._writing(number):
                # A file a tensor: torch keeps all that goes into one file in the host's memory at once.
                writer = dcp.FileSystemWriter(part, single_file_per_rank=False)
                dcp.save(dict(tiles), storage_writer=writer, planner=Writing())
            self._agreed(lambda: self._commit(part, number, begin))
            self.unproved = number
            if number == self.context.config.training.iterations or not self.context.config.training.stop_on_nan:
                self._prove()
        finally:
            if self.context.process.first:
                with suppress(OSError):
                    shutil.rmtree(part)

    def _begin(self, number: int) -> Path:
        """The hidden folder to write into; refused where the disk has no room, before it is filled to the brim."""
        with self._writing(number):
            part = self.shelf.begin(number)
        free, needed = shutil.disk_usage(part).free, self._needed_by()
        if free < needed:
            with suppress(OSError):
                part.rmdir()
            raise self._full(number)
        return part

    def _needed_by(self) -> int:
        """Bytes of a checkpoint: the padded model's parameters, once over all ranks."""
        return _STATE_BY * sizes.parameters(self.context.config.model, self.vocab)

    def _commit(self, part: Path, number: int, begin: float) -> Path:
        """Make the written folder the newest checkpoint, and say so."""
        about = {
            "schema": checkpoints.SCHEMA,
            "step": number,
            "run": self.context.run,
            "words": self.words,
            "padded_vocab": self.vocab,
            "counts": self.state.counts(),
            "course": self.course,
            "config": self.context.config.model_dump(mode="json"),
        }
        with self._writing(number):
            path = self.shelf.commit(part, number, about)
        size, seconds = checkpoints.size_by(path), time.perf_counter() - begin
        message = f"iteration {number} saved: {size / 1e6:.1f} MB in {seconds:.1f} s"
        data = {"step": number, "path": str(path), "seconds": seconds, "bytes": size}
        wire.emit("diagnostic", level="info", code="checkpoint", message=message, data=data)
        return path

    @contextmanager
    def _writing(self, number: int) -> Iterator[None]:
        """Turn what ends a save into its RunnerError."""
        try:
            yield
        except CheckpointException as error:
            causes = [cause for cause, _trace in error.failures.values()]
            cause = next((cause for cause in causes if checkpoints.is_full(cause)), causes[0])
            raise self._unsaved(number, cause) from error
        except OSError as error:
            raise self._unsaved(number, error) from error

    def _unsaved(self, number: int, error: BaseException) -> RunnerError:
        """The error of a save that `error` ended."""
        if checkpoints.is_full(error):
            return self._full(number)
        return RunnerError(
            f"iteration {number} could not be saved in {self.shelf.folder}: {_first_line(error)}; {self._kept()}.",
            hint="See that all processes may write there.",
            every_rank=True,
        )

    def _full(self, number: int) -> RunnerError:
        free = shutil.disk_usage(self.shelf.folder).free / 1e6
        return RunnerError(
            f"iteration {number} could not be saved: no space left in {self.shelf.folder}"
            f" ({self._needed_by() / 1e6:.1f} MB needed, {free:.1f} MB free); {self._kept()}.",
            hint="Free some room and start again with the same EKVI_OUT, or set training.checkpoint.keep lower.",
            every_rank=True,
        )

    def _kept(self) -> str:
        return f"the checkpoint from before is whole: {self.last}" if self.last else "there is none from before"

    def _agreed(self, work: Callable[[], Any]) -> Any:
        """What `work` returns on the first rank, on all ranks; its RunnerError is raised on all of them."""
        told: list[Any] = [None, None]
        if self.context.process.first:
            try:
                told[0] = work()
            except RunnerError as error:
                error.every_rank = True
                told[1] = error
        dist.broadcast_object_list(told, src=0)
        if told[1] is not None:
            raise told[1]
        return told[0]

    def _visible(self, path: Path) -> None:
        """Raise RunnerError where a rank does not see the first one's folder: nodes must share it."""
        if self._any(not path.is_dir()):
            raise RunnerError(
                f"not all processes see {path}: the nodes of a run must share the folder of its checkpoints.",
                hint="Put EKVI_OUT on a file system that all nodes mount, or save nothing.",
                every_rank=True,
            )

    def export(self) -> None:
        """Write the newest checkpoint's weights in Hugging Face's format into `hf/` of the output folder.

        Called by the first rank alone: it reads them from the disk, one tensor at a time.
        """
        if not self.settings.export_hf or self.last is None:
            return
        from runners.megatron import weights

        config = self.context.config
        begin = time.perf_counter()
        folder = self.context.folders.out / "hf"
        weights.export(
            tensors(self.last, _DTYPES.get(config.training.precision, torch.float32)), config, folder, self.words
        )
        size, seconds = checkpoints.size_by(folder), time.perf_counter() - begin
        message = f"the weights of iteration {self.step} as Hugging Face's: {folder}, {size / 1e6:.1f} MB"
        data = {"step": self.step, "path": str(folder), "seconds": seconds, "bytes": size}
        wire.emit("diagnostic", level="info", code="export", message=message, data=data)


def tensors(path: Path, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights in the checkpoint at `path`, whole, by megatron-core's names: (name, tensor of `dtype`).

    Raises RunnerError for a damaged checkpoint.
    """
    with _reading(path):
        held = Reader(path).read_metadata().state_dict_metadata
    for key in sorted(held):
        if key.startswith(WEIGHTS):
            whole = torch.empty(held[key].size)
            with _reading(path), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that it reads without a process group, which is what is meant
                dcp.load({key: whole}, storage_reader=Reader(path), no_dist=True)
            yield key.removeprefix(WEIGHTS), whole.to(dtype)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn what is wrong with the checkpoint at `path` into a RunnerError."""
    try:
        yield
    except CheckpointException as error:
        cause, _trace = next(iter(error.failures.values()))
        raise _unreadable(path, cause) from error
    except (OSError, KeyError, EOFError, pickle.UnpicklingError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: BaseException) -> RunnerError:
    return RunnerError(
        f"the checkpoint {path} cannot be read: {_first_line(error)}.",
        hint="Set training.checkpoint.resume to an older step-N folder, or to never.",
        every_rank=True,
    )


def _first_line(error: BaseException) -> str:
    said = error.args[0] if isinstance(error, KeyError) and error.args else error
    return (str(said).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def _course(config: RunConfig, entry: Entry) -> dict[str, Any]:
    """What decides which samples a step has."""
    training = config.training
    return {
        "data": entry.manifest.get("sha256"),
        "data.seed": config.data.seed,
        "data.train_split": config.data.train_split,
        "training.sequence_length": training.sequence_length,
        "training.global_batch": training.global_batch,
        "training.train_iters": training.iterations,  # an order of all samples that are needed is drawn
    }


def _finite(tiles: Tiles) -> bool:
    """Whether all numbers are: by their largest, which takes no memory of a full GPU, and is NaN where one is."""
    largest = [torch.linalg.vector_norm(tile.memory, torch.inf) for held in tiles.values() for tile in held]
    return not largest or bool(torch.stack(largest).isfinite().all())
