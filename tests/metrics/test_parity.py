"""Whether a comparison was fair."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from cockpit.metrics.parity import parity
from cockpit.metrics.sides import RunFacts, Side
from tests.metrics.made import CONFIG, PROVENANCE, meta


def changed(base: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy of `base` with one dotted key set, or removed where `value` is ..."""
    out = copy.deepcopy(base)
    at = out
    *way, last = path.split(".")
    for key in way:
        at = at[key]
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return out


def side(name: str, *metas: dict[str, Any], metrics: dict[str, Any] | None = None) -> Side:
    """A side of runs with these run.json."""
    summary = {"state": metas[0]["state"], "metrics": metrics or {}}
    return Side(name, [RunFacts(f"{name}{i}", summary, m) for i, m in enumerate(metas)])


def between(path: str, value: Any, *, strict: bool = False) -> dict[str, Any]:
    """Parity of two sides whose run.json differ in one key."""
    found: dict[str, Any] = parity([side("a", meta()), side("b", changed(meta(), path, value))], strict=strict)
    return found


def test_a_length_in_samples_is_that_in_iterations() -> None:
    steps, samples = copy.deepcopy(meta()), copy.deepcopy(meta())
    batch = steps["config"]["training"]["global_batch"]
    counted = {"train_iters": 50, "warmup_steps": 10, "decay_steps": None}
    nulls = dict.fromkeys(("train_samples", "warmup_samples", "decay_samples"))
    steps["config"]["training"] |= {**counted, **nulls}
    samples["config"]["training"] |= dict.fromkeys(counted) | nulls
    samples["config"]["training"] |= {"train_samples": 51 * batch - 1, "warmup_samples": 10 * batch}
    assert parity([side("a", steps), side("b", samples)])["verdict"] == "fair"
    samples["config"]["training"]["warmup_samples"] = 11 * batch
    (one,) = parity([side("a", steps), side("b", samples)])["differences"]
    assert (one["key"], one["severity"], one["values"]) == ("training.warmup_steps", "blocking", {"a": 10, "b": 11})


def test_a_run_that_went_on_from_a_checkpoint_is_labelled() -> None:
    found = between("provenance.resumed", {"step": 100, "path": "/out/checkpoints/step-100"})
    assert found["verdict"] == "labelled"
    (one,) = found["differences"]
    assert (one["key"], one["severity"], one["values"]) == ("resumed_from", "warning", {"a": 0, "b": 100})


def test_sides_that_are_alike_are_fair() -> None:
    assert parity([side("a", meta(), meta()), side("b", meta())]) == {"verdict": "fair", "differences": []}


@pytest.mark.parametrize(
    ("path", "value", "key"),
    [
        ("config.model.layers", 8, "model.layers"),
        ("config.training.micro_batch", 2, "training.micro_batch"),
        ("config.training.global_batch", 16, "training.global_batch"),
        ("config.training.sequence_length", 256, "training.sequence_length"),
        ("config.training.precision", "fp8", "training.precision"),
        ("config.training.learning_rate", 3e-4, "training.learning_rate"),
        ("config.model.vocab", None, "model.vocab"),
        ("config.data.source", "synthetic", "data.source"),
        ("config.runner.name", "smoke", "runner"),
        ("provenance.data.sha256", "beef", "prepared.sha256"),
        ("provenance.data.tokens", 5, "prepared.tokens"),
    ],
)
def test_other_work_is_blocking(path: str, value: Any, key: str) -> None:
    found = between(path, value)
    assert [(d["key"], d["severity"]) for d in found["differences"]] == [(key, "blocking")]
    assert found["verdict"] == "labelled"
    assert between(path, value, strict=True)["verdict"] == "refused"


@pytest.mark.parametrize(
    ("path", "value", "key"),
    [
        ("config.training.parallel.tensor", 2, "training.parallel.tensor"),
        ("config.training.parallel.context", 2, "training.parallel.context"),
        ("config.training.recompute", "full", "training.recompute"),
        ("config.training.kernels", {"layer": "fused"}, "training.kernels.layer"),
        ("config.training.overlap", False, "training.overlap"),
        ("config.training.threads", 2, "training.threads"),
        ("config.training.seed", 1, "training.seed"),
        ("provenance.code_sha256", "cd" * 32, "code_sha256"),
        ("provenance.host.governor", "powersave", "host.governor"),
        ("provenance.runner.packages.numpy", "2.0.0", "packages.numpy"),
        ("provenance.runner.threads", 2, "runner_said.threads"),
        ("provenance.runner.torch.blas", "mkl", "runner_said.torch.blas"),
        ("provenance.runner.packages.megatron-core", "0.16.0", "packages.megatron-core"),
        ("provenance.runner.world", 2, "runner_said.world"),
        ("plan.launcher", "slurm", "launcher"),
    ],
)
def test_other_conditions_are_a_warning(path: str, value: Any, key: str) -> None:
    found = between(path, value, strict=True)
    assert [(d["key"], d["severity"]) for d in found["differences"]] == [(key, "warning")]
    assert found["verdict"] == "labelled"
    assert found["differences"][0]["why"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("provenance.host.hostname", "other"),
        ("provenance.host.kernel", "Linux 5.15"),
        ("provenance.cockpit", "0.2.0"),
        ("config.training.backend", "rocm"),
        ("config.training.name", "rocm"),
        ("config.model.name", "little"),
    ],
)
def test_what_tells_sides_apart_anyway_is_fair(path: str, value: Any) -> None:
    found = between(path, value, strict=True)
    assert [d["severity"] for d in found["differences"]] == ["info"]
    assert found["verdict"] == "fair"


def test_what_is_of_each_run_its_own_is_no_difference() -> None:
    assert between("provenance.runner.run", "another")["verdict"] == "fair"


def test_a_torch_build_for_another_vendor_is_info_and_another_version_a_warning() -> None:
    build = between("provenance.runner.torch.version", "2.13.0+rocm7.0")
    assert {d["key"]: d["severity"] for d in build["differences"]} == {"packages.torch.build": "info"}
    version = between("provenance.runner.torch.version", "2.12.0+cpu")
    assert {d["key"]: d["severity"] for d in version["differences"]} == {"packages.torch": "warning"}


def test_an_environment_variable_on_one_side_only_is_named() -> None:
    env = {"OMP_NUM_THREADS": "1", "NCCL_ALGO": "Ring"}
    stages = [{"stage": "train", "env": env}]
    (found,) = between("plan.stages", stages)["differences"]
    assert found["key"] == "env.NCCL_ALGO"
    assert found["severity"] == "warning"
    assert found["values"] == {"a": "(not set)", "b": "Ring"}
    assert "one side only" in found["why"]


def test_secrets_are_compared_by_presence_and_never_shown() -> None:
    one = [{"stage": "train", "env": {"HF_TOKEN": "hf_abc", "AWS_SECRET_ACCESS_KEY": "x1"}}]
    two = [{"stage": "train", "env": {"HF_TOKEN": "hf_xyz"}}]
    a, b = changed(meta(), "plan.stages", one), changed(meta(), "plan.stages", two)
    found = parity([side("a", a), side("b", b)])
    assert [d["key"] for d in found["differences"]] == ["env.AWS_SECRET_ACCESS_KEY"]
    assert not any(secret in str(found) for secret in ("hf_abc", "hf_xyz", "x1"))


@pytest.mark.parametrize("name", ["EKVI_RUN", "MASTER_PORT", "MASTER_ADDR", "RANK", "LOCAL_RANK"])
def test_what_the_launcher_sets_for_every_run_is_no_difference(name: str) -> None:
    stages = [{"stage": "train", "env": {"OMP_NUM_THREADS": "1", name: "7"}}]
    assert between("plan.stages", stages)["verdict"] == "fair"


def test_a_swept_key_is_info_within_a_group_and_blocking_across_groups() -> None:
    a = changed({**meta(), "sweep": {"training.learning_rate": "0.001"}}, "config.training.learning_rate", 1e-3)
    b = changed({**meta(), "sweep": {"training.learning_rate": "0.0003"}}, "config.training.learning_rate", 3e-4)
    (found,) = parity([side("a", a), side("b", b)])["differences"]
    assert found["severity"] == "info"
    assert "swept" in found["why"]
    other = {**b, "group": "another"}
    assert parity([side("a", a), side("b", other)])["differences"][0]["severity"] == "blocking"


def test_a_swept_choice_of_a_group_is_swept_in_all_its_keys() -> None:
    a = {**meta(), "sweep": {"model": "tiny"}}
    b = changed({**meta(), "sweep": {"model": "deep"}}, "config.model.layers", 8)
    (found,) = parity([side("a", a), side("b", b)])["differences"]
    assert (found["key"], found["severity"]) == ("model.layers", "info")
    named_alike = {"model_extra": "1"}
    other = [{**one, "sweep": named_alike} for one in (a, b)]
    assert parity([side("a", other[0]), side("b", other[1])])["differences"][0]["severity"] == "blocking"


def test_a_side_whose_runs_differ_among_themselves_is_a_warning() -> None:
    odd = changed(meta(), "config.training.threads", 4)
    (found,) = parity([side("a", meta(), odd), side("b", meta(), odd)])["differences"]
    assert found["severity"] == "warning"
    assert "differ among themselves" in found["why"]
    assert found["values"]["a"] == "1 | 4"


def test_repeats_with_seeds_of_their_own_are_fair_where_the_sides_have_the_same() -> None:
    runs = [changed(meta(), "config.training.seed", s) for s in (1, 2, 3)]
    assert parity([side("a", *runs), side("b", *reversed(runs))])["verdict"] == "fair"
    assert parity([side("a", *runs), side("b", *runs[:2])])["verdict"] == "labelled"


def test_what_one_side_did_not_record_cannot_be_called_the_same() -> None:
    found = parity([side("a", meta()), side("b", {**meta(), "config": {}})])
    assert found["verdict"] == "labelled"
    missing = {d["key"]: d for d in found["differences"]}["training.micro_batch"]
    assert missing["severity"] == "warning"
    assert "not recorded for b" in missing["why"]
    assert missing["values"] == {"a": 4, "b": None}


def test_throttling_above_a_hundredth_of_the_time_is_a_warning() -> None:
    def throttled(ratio: float) -> dict[str, Any]:
        return {"throttled_ratio": {"value": ratio}}

    hot = parity([side("a", meta(), metrics=throttled(0.0)), side("b", meta(), metrics=throttled(0.3))])
    assert [(d["key"], d["values"]) for d in hot["differences"]] == [("throttling", {"a": 0.0, "b": 0.3})]
    cool = parity([side("a", meta(), metrics=throttled(0.0)), side("b", meta(), metrics=throttled(0.009))])
    assert cool["verdict"] == "fair"


def test_the_worst_comes_first() -> None:
    b = changed(changed(meta(), "config.model.layers", 9), "provenance.host.hostname", "x")
    b = changed(b, "provenance.code_sha256", "ff")
    found = parity([side("a", meta()), side("b", b)])["differences"]
    assert [d["severity"] for d in found] == ["blocking", "warning", "info"]


def test_the_made_configuration_is_not_changed_by_a_comparison() -> None:
    before = copy.deepcopy((CONFIG, PROVENANCE))
    between("config.model.layers", 8)
    assert before == (CONFIG, PROVENANCE)


def test_a_package_on_one_side_only_is_told_from_packages_not_recorded() -> None:
    one = between("provenance.runner.packages.numpy", ...)
    assert one["differences"][0]["why"] == "a package on one side only"
    none = between("provenance.runner.packages", ...)
    assert all("not recorded for b" in d["why"] for d in none["differences"] if d["key"] == "packages.numpy")


def contained(server: str, vendor: str, known: dict[str, Any] | None = None, **settings: Any) -> dict[str, Any]:
    """A run.json of a run in a container, with what is known of its image and what its launcher was set to."""
    launch = {"image": "train:1", "shm": "16g", "group_add": [], **settings}
    found = {"engine": "docker", "image": "train:1", "image_id": "sha256:aa", "digest": "sha256:dd", **(known or {})}
    base = changed(changed(meta(server=server, vendor=vendor), "plan.launcher", "container"), "plan.launch", launch)
    return changed(base, "provenance.container", found)


def severities(a: dict[str, Any], b: dict[str, Any]) -> dict[str, str]:
    """Key -> severity of what two run.json differ in."""
    return {d["key"]: d["severity"] for d in parity([side("a", a), side("b", b)])["differences"]}


def test_another_image_is_a_warning_between_equal_machines_and_none_between_vendors() -> None:
    other = {"image_id": "sha256:bb", "digest": "sha256:ee"}
    assert severities(contained("a", "amd"), contained("b", "amd", other)) == {"image": "warning"}
    assert severities(contained("a", "nvidia"), contained("b", "amd", other)) == {"image": "info"}
    built = [contained("a", "amd", image=None), contained("b", "amd", other, image=None)]
    assert severities(*built) == {"image": "info"}
    (found,) = parity([side("a", contained("a", "amd")), side("b", contained("b", "amd", other))])["differences"]
    assert found["values"] == {"a": "train:1 (dd)", "b": "train:1 (ee)"}


@pytest.mark.parametrize("known", [{"digest": None}, {"image_id": "sha256:bb"}, {"image": "mirror/train:1"}])
def test_an_image_is_the_same_by_its_id_or_its_digest(known: dict[str, Any]) -> None:
    assert severities(contained("a", "amd"), contained("b", "amd", known)) == {}


def test_an_image_that_nobody_recorded_cannot_be_called_the_same() -> None:
    unknown = {"image_id": None, "digest": None}
    assert severities(contained("a", "nvidia"), contained("b", "amd", unknown)) == {"image": "warning"}


def test_repeats_in_two_images_are_a_warning_also_between_vendors() -> None:
    runs = [contained("a", "nvidia"), contained("a", "nvidia", {"image_id": "sha256:bb", "digest": None})]
    found = parity([side("a", *runs), side("b", contained("b", "amd"))])["differences"]
    assert [(d["key"], d["severity"]) for d in found] == [("image", "warning")]
    assert "a differ among themselves" in found[0]["why"]


def test_settings_of_a_container_that_may_cost_speed_are_a_warning_and_its_devices_are_not() -> None:
    a, b = contained("a", "nvidia"), contained("b", "amd", {"engine": "podman"}, group_add=["video"], shm="1g")
    found = severities(a, b)
    assert found == {"container.shm": "warning", "container.group_add": "info", "container.engine": "info"}
    assert set(severities(meta(), contained("b", "cpu"))) == {"launcher"}


def test_what_vendors_images_say_of_themselves_is_fair_and_a_setting_is_not() -> None:
    said = {"OMP_NUM_THREADS": "1"}
    cuda = {"CUDA_VERSION": "13.0", "CUDA_HOME": "/usr/local/cuda", "CUDA_VISIBLE_DEVICES": "0,1"}
    rocm = {"ROCR_VISIBLE_DEVICES": "2,3", "PYTORCH_ROCM_ARCH": "gfx942", "HIP_PATH": "/opt/rocm"}
    a, b = (changed(meta(), "provenance.runner.env", said | own) for own in (cuda, rocm))
    assert set(severities(a, b).values()) == {"info"}
    assert severities(a, changed(a, "provenance.runner.env.CUDA_DEVICE_MAX_CONNECTIONS", "1")) == {
        "env.CUDA_DEVICE_MAX_CONNECTIONS": "warning"
    }


def test_another_number_of_gpus_or_nodes_is_a_warning() -> None:
    many = changed(meta(), "handle", {"queue": "q", "nodes": [{}, {}]})
    assert severities(meta(), many) == {"nodes": "warning"}
    sides = [
        Side(name, [RunFacts(name, {"state": "SUCCEEDED", "gpu": {"count": count}}, meta())])
        for name, count in (("a", 8), ("b", 4))
    ]
    assert [(d["key"], d["severity"]) for d in parity(sides)["differences"]] == [("gpus", "warning")]


def test_a_side_that_was_refused_is_not_said_to_differ_in_what_nobody_could_record() -> None:
    refused = changed(meta(server="b", state="CANCELLED"), "provenance", ...)
    assert severities(meta(), refused) == {"succeeded": "warning"}
    other = Side("b", [RunFacts("b0", {"state": "CANCELLED"}, changed(refused, "config.model.layers", 8))])
    found = parity([side("a", meta()), other])["differences"][0]
    assert (found["key"], found["severity"], found["values"]) == ("model.layers", "blocking", {"a": 4, "b": 8})


def test_a_side_without_a_run_that_succeeded_is_not_called_fair() -> None:
    failed = side("b", meta(server="b", state="FAILED"))
    found = parity([side("a", meta(), meta()), failed])
    assert found["verdict"] == "labelled"
    (told,) = [d for d in found["differences"] if d["key"] == "succeeded"]
    assert told["values"] == {"a": 2, "b": 0}
    assert told["why"] == "b has no run that succeeded: nothing that it did could be compared"
    assert parity([failed])["verdict"] == "fair"  # there is nothing that it could be unfair to


def test_runs_that_were_in_no_container_and_did_not_succeed_have_no_image_to_differ_in() -> None:
    cancelled = [side(n, meta(server=n, state="CANCELLED")) for n in "ab"]
    assert "image" not in {d["key"] for d in parity(cancelled)["differences"]}
