"""What libraries raise, as their own classes with their own words, is one sentence that says what to do."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runners import trouble
from runners.errors import ConfigurationError, RunnerError
from runners.schema import RunConfig

OOM = (
    "{0} out of memory. Tried to allocate 22.78 GiB. GPU 3 has a total capacity of 31.47 GiB of which 12.73 GiB is"
    " free. Process 4711 has 2.50 GiB memory in use. Including non-PyTorch memory, this process has 18.73 GiB memory"
    " in use. Of the allocated memory 9.08 GiB is allocated by PyTorch, and 9.35 GiB is reserved by PyTorch but"
    " unallocated. If reserved but unallocated memory is large try setting"
    " PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management "
    " (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)
NCCL = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:268, {0} (run with NCCL_DEBUG=INFO for"
    " details), NCCL version 2.21.5\n{1}\nLast error:\n{2}\nException raised from create at /pytorch/torch/x.hpp:268"
)
SYSTEM = "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. "


def config(**sections: Any) -> RunConfig:
    return RunConfig.model_validate(sections)


def told(error: BaseException, settings: RunConfig | None = None) -> RunnerError:
    """What becomes of `error` where a stage raises it."""
    with pytest.raises(RunnerError) as caught, trouble.explained(settings):
        raise error
    assert caught.value.__cause__ is error
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("name", ["CUDA", "HIP"])
def test_a_gpu_out_of_memory_says_who_holds_what_and_which_keys_to_change(name: str) -> None:
    torch = pytest.importorskip("torch")
    settings = config(training={"backend": "cuda", "precision": "bf16", "micro_batch": 8, "global_batch": 8})
    found = told(torch.OutOfMemoryError(OOM.format(name)), settings)
    assert found.message == (
        "GPU 3 has no memory left: 22.78 GiB more were asked for, 12.73 GiB of its 31.47 GiB are free, this training"
        " holds 9.08 GiB, and 9.35 GiB that are in pieces too small, other programs hold 2.50 GiB."
    )
    assert found.hint is not None
    assert "training.micro_batch=" in found.hint or "training.recompute=" in found.hint
    assert found.exit_code == 1


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "HIP error: out of memory",
    ],
)
def test_other_words_for_it_are_known_too(text: str) -> None:
    assert "no memory left" in str(told(RuntimeError(text)))


@pytest.mark.parametrize(
    ("section", "named"),
    [
        ({"name": "lora", "batch": 4}, "runner.gradient_checkpointing=true, a smaller runner.batch"),
        ({"name": "smoke"}, "Lower runner.batch"),
    ],
)
def test_each_runner_is_told_its_own_keys(section: dict[str, Any], named: str) -> None:
    torch = pytest.importorskip("torch")
    assert named in str(told(torch.OutOfMemoryError(OOM.format("CUDA")), config(runner=section)))


def test_the_hosts_memory_is_not_the_gpus() -> None:
    torch = pytest.importorskip("torch")
    with (
        pytest.raises(RunnerError, match=r"the machine has no memory left: 4194304\.0 GiB more"),
        trouble.explained(),
    ):
        torch.empty(1 << 50)
    assert "the machine has no memory left" in str(told(MemoryError()))


@pytest.mark.parametrize(
    ("kind", "words", "last", "mend"),
    [
        (
            "invalid usage",
            "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.",
            "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000",
            "at most one process a GPU",
        ),
        (
            "unhandled system error",
            SYSTEM,
            "Error while creating shared memory segment /dev/shm/nccl-1YsMbG (size 7340384)",
            "launcher.shm",
        ),
        (
            "unhandled system error",
            SYSTEM,
            "socketStartConnect: Connect to 10.0.0.2<43231> failed : Software caused connection abort",
            "NCCL_SOCKET_IFNAME",
        ),
        (
            "unhandled cuda error",
            "ncclUnhandledCudaError: Call to CUDA function failed.",
            "Cuda failure 100 'no CUDA-capable device is detected'",
            "CUDA_VISIBLE_DEVICES",
        ),
        (
            "unhandled cuda error",
            "ncclUnhandledCudaError: Call to CUDA function failed.",
            "Cuda failure 2 'out of memory'",
            "lower training.micro_batch",
        ),
        (
            "remote process exited or there was a network error",
            "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
            "socketPollConnect: connect returned Connection reset by peer",
            "its own message says why",
        ),
        (
            "internal error",
            "ncclInternalError: Internal check failed.",
            "Could not find a path for pattern 4",
            "NCCL_DEBUG=INFO",
        ),
    ],
)
def test_nccl_says_its_last_error_and_what_mends_it(kind: str, words: str, last: str, mend: str) -> None:
    dist = pytest.importorskip("torch.distributed")
    found = told(dist.DistBackendError(NCCL.format(kind, words, last)))
    assert found.message == f"NCCL failed: {last}."
    assert found.hint is not None
    assert mend in found.hint


def test_on_rocm_it_is_rccl() -> None:
    dist = pytest.importorskip("torch.distributed")
    error = dist.DistBackendError(NCCL.format("internal error", "ncclInternalError: Internal check failed.", "x"))
    assert told(error, config(training={"backend": "rocm", "precision": "bf16"})).message == "RCCL failed: x."


@pytest.mark.parametrize(
    ("error", "mend"),
    [
        (
            RuntimeError(
                "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver by"
                " downloading and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx"
            ),
            "update the server's driver",
        ),
        (
            RuntimeError(
                "Unexpected error from cudaGetDeviceCount(). Error 804: forward compatibility was attempted on non"
                " supported HW"
            ),
            "Take an image whose torch",
        ),
        (RuntimeError("CUDA error: no kernel image is available for execution on the device"), "Take an image whose"),
        (RuntimeError("No HIP GPUs are available"), "HIP_VISIBLE_DEVICES"),
        (RuntimeError("CUDA error: invalid device ordinal"), "one process a GPU"),
        (AssertionError("Torch not compiled with CUDA enabled"), "training=cpu"),
    ],
)
def test_a_gpu_that_cannot_be_used_is_a_matter_of_configuration(error: Exception, mend: str) -> None:
    found = told(error)
    assert isinstance(found, ConfigurationError)
    assert found.hint is not None
    assert mend in found.hint


def test_a_full_disk_under_safetensors_is_said(tmp_path: Path) -> None:
    """Its writer is held to a size that no file may pass, as a disk without room would hold it."""
    program = (
        "import resource, signal, sys, numpy\n"
        "from safetensors.numpy import save_file\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "from runners import trouble\n"
        "try:\n"
        "    with trouble.explained():\n"
        "        save_file({'a': numpy.zeros(1 << 16)}, sys.argv[1])\n"
        "except trouble.RunnerError as error:\n"
        "    print(error)\n"
    )
    words = [sys.executable, "-c", program, str(tmp_path / "a.safetensors")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert "no space left on the disk" in done.stdout, done.stderr


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_names_the_file(number: int) -> None:
    assert "no space left on the disk for /out/a" in str(told(OSError(number, "No space left on device", "/out/a")))


def hub_error(kind: str, status: int) -> Exception:
    """The hub's answer, as its library raises it."""
    errors = pytest.importorskip("huggingface_hub.errors")
    httpx = pytest.importorskip(errors.HfHubHTTPError.__mro__[1].__module__.partition(".")[0])
    request = httpx.Request("GET", "https://hub.example/acme/gated/resolve/main/config.json")
    error: Exception = getattr(errors, kind)(
        f"{status} Client Error.", response=httpx.Response(status, request=request)
    )
    return error


@pytest.mark.parametrize(
    ("kind", "status", "named"),
    [
        ("GatedRepoError", 403, "Accept its licence"),
        ("RepositoryNotFoundError", 401, "HF_TOKEN"),
        ("HfHubHTTPError", 503, "could not be downloaded: the hub answered 503"),
    ],
)
def test_what_the_hub_refuses_is_said_of_the_model_that_was_asked_for(
    kind: str, status: int, named: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("HF_TOKEN", "HUGGINGFACE_HUB_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
    settings = config(model={"weights": "acme/gated"})
    outer = OSError("You are trying to access a gated repo.\nMake sure to have access to it")
    outer.__cause__ = hub_error(kind, status)  # as transformers raises it
    with pytest.raises(RunnerError) as caught, trouble.explained(settings):
        raise outer
    assert str(caught.value).startswith("model.weights=acme/gated ")
    assert named in str(caught.value)


def test_a_missing_local_file_is_named_with_its_key(tmp_path: Path) -> None:
    settings = config(runner={"name": "lora", "model_local_dir": str(tmp_path)})
    error = OSError(f"{tmp_path} does not appear to have a file named config.json. Checkout 'https://hub.example/x'")
    found = told(error, settings)
    assert isinstance(found, ConfigurationError)
    assert found.message == f"runner.model_local_dir: {tmp_path}/config.json is not there."
    with pytest.raises(ConfigurationError, match=r"runner\.model_local_dir"), trouble.explained(settings):
        (tmp_path / "tokenizer.json").read_text()


def test_gloo_is_not_nccl() -> None:
    dist = pytest.importorskip("torch.distributed")
    assert trouble.understood(dist.DistBackendError("Gloo connectFullMesh failed with timed out connecting")) is None


def test_what_is_not_known_keeps_its_traceback(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), trouble.explained(config()):
        (tmp_path / "elsewhere").read_text()
    with pytest.raises(ZeroDivisionError), trouble.explained():
        _ = 1 // 0
    refused = ConfigurationError("as it is")
    with pytest.raises(ConfigurationError) as caught, trouble.explained():
        raise refused
    assert caught.value is refused
