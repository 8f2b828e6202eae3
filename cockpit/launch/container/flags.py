"""What a container is given of its machine: GPUs and other devices, memory, limits, rights, folders.

Which GPUs a program in the container sees, where `gpus` names a subset of the machine's:

nvidia  the engine gives the container those devices alone and numbers them anew, so CUDA_VISIBLE_DEVICES is
        0..n-1 in there, whatever the image says; the machine's own numbers would leave the last ones out.
amd     all of /dev/dri is given, because a render node's number says nothing certain about its GPU's; ROCm's runtime
        filters by the machine's numbers (ROCR_VISIBLE_DEVICES) and numbers anew. HIP_VISIBLE_DEVICES would filter
        what is left once more, so it is not set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cockpit.core.errors import LaunchRefused
from cockpit.core.records import ContainerFacts, ServerSpec
from cockpit.launch.container.mounts import Mount

if TYPE_CHECKING:
    from cockpit.config.models import ContainerLauncher

DATA = "/data"


def all_of(server: ServerSpec, settings: ContainerLauncher, facts: ContainerFacts) -> list[str]:
    """Every flag but those for names, variables, mounts and the program."""
    return [
        *_gpus(server, settings, facts),
        *_infiniband(settings, facts),
        *_pairs("--device", settings.devices),
        *_groups(server, settings, facts),
        *_pairs("--cap-add", settings.cap_add),
        *_security(server, settings, facts),
        *_machine(settings),
        *_user(settings, facts),
    ]


def _pairs(flag: str, values: tuple[str, ...] | list[str]) -> list[str]:
    return [word for value in values for word in (flag, value)]


def _by_cdi(settings: ContainerLauncher, facts: ContainerFacts) -> bool:
    """Podman knows NVIDIA's GPUs by their CDI names alone; docker does where its machine is set up so."""
    if settings.nvidia == "auto":
        return facts.cdi or facts.engine == "podman"
    return settings.nvidia == "cdi"


def _gpus(server: ServerSpec, settings: ContainerLauncher, facts: ContainerFacts) -> list[str]:
    if server.vendor == "amd":
        return ["--device", "/dev/kfd", "--device", "/dev/dri"]
    if server.vendor != "nvidia":
        return []
    if settings.nvidia == "none":
        if server.gpus is not None:
            raise LaunchRefused(
                f"server {server.name}: gpus chooses some of its GPUs, and launcher.nvidia=none gives it none.",
                hint="Leave gpus out, or let launcher.nvidia be auto.",
            )
        return []
    if _by_cdi(settings, facts):
        chosen = ["all"] if server.gpus is None else [str(i) for i in server.gpus]
        return _pairs("--device", [f"nvidia.com/gpu={name}" for name in chosen])
    # Docker reads the value as comma-separated fields: the quotes keep the list of devices one of them.
    return ["--gpus", "all" if server.gpus is None else f'"device={",".join(map(str, server.gpus))}"']


def _infiniband(settings: ContainerLauncher, facts: ContainerFacts) -> list[str]:
    wanted = facts.infiniband if settings.infiniband is None else settings.infiniband
    return ["--device", "/dev/infiniband", "--cap-add", "IPC_LOCK"] if wanted else []


def _groups(server: ServerSpec, settings: ContainerLauncher, facts: ContainerFacts) -> list[str]:
    """The groups that own AMD's devices, by number: an image may know the names by other numbers, or not at all."""
    if server.vendor != "amd":
        return _pairs("--group-add", settings.group_add)
    if facts.rootless and facts.engine == "podman" and not settings.group_add:
        return ["--group-add", "keep-groups"]  # a number is another group in there; podman takes this one alone
    known = [str(gid) for gid in facts.groups] if server.container is not None else ["video"]
    return _pairs("--group-add", list(dict.fromkeys([*known, *settings.group_add])))


def _security(server: ServerSpec, settings: ContainerLauncher, facts: ContainerFacts) -> list[str]:
    options = list(settings.security_opt)
    if server.vendor == "amd" and not any(option.startswith("seccomp=") for option in options):
        options.insert(0, "seccomp=unconfined")  # ROCm's debugger and memory mappings between processes
    if facts.engine == "podman" and not any(option.startswith("label=") for option in options):
        options.append("label=disable")  # with SELinux a folder of the user's is else not readable in there
    return _pairs("--security-opt", options)


def _machine(settings: ContainerLauncher) -> list[str]:
    flags = ["--network", settings.network]
    if settings.ipc is not None:
        flags += ["--ipc", settings.ipc]
    own_ipc = settings.ipc is None or settings.ipc in ("private", "shareable")
    if settings.shm is not None and own_ipc:  # elsewhere the shared memory is another's
        flags += ["--shm-size", settings.shm]
    if settings.memory is not None:
        flags += ["--memory", settings.memory]
    flags += _pairs("--ulimit", [f"{k}={v}" for k, v in settings.ulimits.items() if v is not None])
    if settings.init:
        flags.append("--init")
    if settings.privileged:
        flags.append("--privileged")
    if settings.read_only:
        flags += ["--read-only", "--tmpfs", "/tmp:exec"]  # noqa: S108  compiled kernels are loaded from there
    return flags


def _user(settings: ContainerLauncher, facts: ContainerFacts) -> list[str]:
    """`self` is whoever the agent is: without root rights, root in the container is that user already."""
    if settings.user is None:
        return []
    if settings.user != "self":
        return ["--user", settings.user]
    if facts.rootless and facts.engine == "docker":
        return ["--user", "0:0"]
    keep = ["--userns", "keep-id"] if facts.rootless else []
    return [*keep, "--user", f"{facts.uid}:{facts.gid}"]


def env(server: ServerSpec, settings: ContainerLauncher, facts: ContainerFacts) -> dict[str, str]:
    """Variables that the server's own may replace."""
    out: dict[str, str] = {}
    if settings.user == "self":  # a user without a name or a home in the image
        out |= {"HOME": "/tmp", "USER": "ekvi", "LOGNAME": "ekvi"}  # noqa: S108
    if hf_cache(settings, facts) is not None:
        out["HF_HOME"] = DATA
    if server.gpus is not None and server.vendor == "nvidia":
        out["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(len(server.gpus))))
    if server.gpus is not None and server.vendor == "amd":
        out["ROCR_VISIBLE_DEVICES"] = ",".join(map(str, server.gpus))
    return out


def hf_cache(settings: ContainerLauncher, facts: ContainerFacts) -> str | None:
    """The Hugging Face cache on the server, absolute; the agent makes it where it is missing."""
    return None if settings.hf_cache is None else at_home(settings.hf_cache, facts)


def at_home(path: str, facts: ContainerFacts) -> str:
    """A path on the server, absolute."""
    return facts.home.rstrip("/") + path[1:] if path == "~" or path.startswith("~/") else path


def mounts(server: ServerSpec, settings: ContainerLauncher, facts: ContainerFacts) -> list[Mount]:
    """The Hugging Face cache and the server's own mounts: `PATH: PATH`, with `:ro` behind for read-only."""
    cache = hf_cache(settings, facts)
    out = [] if cache is None else [Mount(cache, DATA)]
    for source, target in server.mounts.items():
        out.append(Mount(at_home(source, facts), target.removesuffix(":ro"), readonly=target.endswith(":ro")))
    return out
