"""Attention over chunks of a sequence, which kernel works, and what is recomputed: one process, by torch itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from runners.data import quiet

torch = pytest.importorskip("torch")
quiet.silence()  # megatron-core warns on import of what else could be installed

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from runners import group  # noqa: E402
from runners.errors import ConfigurationError  # noqa: E402
from runners.megatron import attention, context, grid, model  # noqa: E402
from runners.megatron.cpu import CpuBackend  # noqa: E402
from runners.process import Process  # noqa: E402
from runners.schema import RunConfig  # noqa: E402

pytestmark = [pytest.mark.train, pytest.mark.filterwarnings("ignore::UserWarning:megatron.*")]
CPU = torch.device("cpu")


def config(**training: Any) -> RunConfig:
    return RunConfig.model_validate({"training": {"sequence_length": 32, "micro_batch": 1, **training}})


class Counted(TorchDispatchMode):
    """Counts operations by name."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func.__name__.partition(".")[0]] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_late_chunks_see_what_they_would_in_the_whole(kv_heads: int) -> None:
    torch.manual_seed(1)
    q, k, v = (torch.randn(2, heads, 24, 8, dtype=torch.float64) for heads in (4, kv_heads, kv_heads))
    whole = attention.causal(q, k, v)
    chunks = [attention.causal(q[:, :, at : at + 6], k[:, :, : at + 6], v[:, :, : at + 6]) for at in range(0, 24, 6)]
    torch.testing.assert_close(torch.cat(chunks, 2), whole, rtol=1e-12, atol=1e-12)


def test_all_ranks_hold_all_chunks_and_work_alike() -> None:
    held = [context.chunks(rank, 4) for rank in range(4)]
    assert sorted(chunk for pair in held for chunk in pair) == list(range(8))
    assert {sum(pair) for pair in held} == {7}


@pytest.mark.parametrize(("asked", "found"), [("auto", "flash"), ("flash", "flash"), ("math", "math")])
def test_the_kernel_that_ran_is_found(asked: str, found: str) -> None:
    assert attention.ran(config(kernels={"attention": asked}), CPU) == found


@pytest.mark.parametrize("parallel", [{}, {"context": 2}], ids=["whole", "chunks"])
def test_a_kernel_that_is_not_there_is_refused(parallel: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match="no such kernel on cpu for fp32 heads of 32"):
        attention.ran(config(kernels={"attention": "cudnn"}, parallel=parallel), CPU)


def test_sequence_parallelism_is_refused_on_the_host() -> None:
    with pytest.raises(ConfigurationError, match=r"training\.parallel\.sequence=true is not possible on the cpu"):
        CpuBackend().check(config(parallel={"tensor": 2, "sequence": True}))


@pytest.fixture(scope="module")
def alone() -> Iterator[None]:
    """A process group of one, with megatron-core's grid."""
    from megatron.core import parallel_state

    with group.joined(Process(), "gloo"):
        CpuBackend().seed(1)
        grid.lay(config().training.parallel)
        yield
        parallel_state.destroy_model_parallel()


def counted(recompute: str) -> tuple[Counter[str], Any]:
    """The operations of a forward and a backward of two layers, and the loss."""
    small = RunConfig.model_validate(
        {"training": {"sequence_length": 32, "recompute": recompute}, "model": {"layers": 2}}
    )
    (chunk,) = model.build(small, CpuBackend(), 128)
    tokens = torch.arange(32)[None]
    with CpuBackend().context(), Counted() as counted:
        loss = chunk(tokens, None, None, labels=tokens).mean()
        loss.backward()
    return counted.calls, loss


def test_what_is_recomputed_is_what_was_asked_for(alone: None) -> None:
    calls = {recompute: counted(recompute) for recompute in ("none", "selective", "full")}
    assert calls["none"][1] == calls["selective"][1] == calls["full"][1]
    products = {recompute: found["mm"] for recompute, (found, _loss) in calls.items()}
    assert products["selective"] == products["none"]
    assert products["full"] == products["none"] + 2 * 4
    activations = {recompute: found["silu"] for recompute, (found, _loss) in calls.items()}
    assert activations["none"] == 2
    assert activations["selective"] == activations["full"] == 4
    kernels = {
        recompute: sum(n for name, n in found.items() if "flash_attention" in name and "backward" not in name)
        for recompute, (found, _loss) in calls.items()
    }
    assert (kernels["none"], kernels["selective"], kernels["full"]) == (2, 2, 4)
