"""What is recorded of the environment, and what never is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners import provenance

SECRET = ("TOKEN", "KEY", "SECRET", "PASS")


STEERING = ["NCCL_DEBUG", "OMP_NUM_THREADS", "HSA_OVERRIDE_GFX_VERSION", "LD_PRELOAD", "PYTORCH_ALLOC_CONF"]


@pytest.mark.parametrize("name", [*STEERING, "CUDA_DEVICE_MAX_CONNECTIONS", "GPU_MAX_HW_QUEUES"])
def test_variables_that_steer_the_stack_are_recorded(name: str) -> None:
    assert provenance.environment({name: "1", "HOME": "/x", "HF_TOKEN": "s"}) == {name: "1"}


@given(st.sampled_from(["NCCL_", "TORCH_", "CUDA_"]), st.sampled_from(SECRET), st.text("ABC_", max_size=5))
def test_a_name_that_speaks_of_a_secret_never_is(prefix: str, secret: str, rest: str) -> None:
    assert provenance.environment({f"{prefix}{rest}{secret}{rest}": "hidden"}) == {}


def test_only_installed_packages_are_listed() -> None:
    found = provenance.packages(["no-such-package"])
    assert "no-such-package" not in found
    assert found["pydantic"]
