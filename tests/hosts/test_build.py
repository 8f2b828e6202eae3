"""Images are built on a server from docker/, from real base images, and never with another torch than the base's."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from cockpit.core.errors import LaunchRefused
from cockpit.core.imagename import image_tag
from cockpit.core.records import ServerSpec
from cockpit.engine.images import Built, Place, build, ensure_image
from tests.hosts.dockerd import Dockerd
from tests.hosts.engines import SITE, TORCH, Engine, base_image, shelf, watching_argvs, wheel

pytestmark = pytest.mark.hosts

BASE, BARE = "ekvi-test/base:1", "ekvi-test/bare:1"
TOKEN = "sesame-build-7351"
_HIDDEN = wheel("tokenizers", "0.23.0", files={"torch/version.py": "__version__ = 'other'\n"})
_WANTS = wheel("megatron-core", "0.16.1", needs=["torch>=99"])


@pytest.fixture(scope="module", autouse=True)
def bases(dockerd: Dockerd) -> None:
    shelves = {"good": shelf(), "hidden": shelf(tokenizers=_HIDDEN), "wants": shelf(megatron_core=_WANTS)}
    base_image(dockerd, BASE, torch=True, shelves=shelves)
    torches = {
        f"torch-{v}-py3-none-any.whl": wheel("torch", v, files={"torch/__init__.py": ""}) for v in ("2.9.1", "3.0")
    }
    base_image(dockerd, BARE, torch=False, shelves={"good": {**shelf(), **torches}})


@pytest.fixture
def host(dockerd: Dockerd, tmp_path: Path) -> Engine:
    return Engine("server", dockerd, tmp_path / "work")


def launch(base: str = BASE, wheels: str = "good", **args: str) -> dict[str, object]:
    build_args = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": f"/opt/{wheels}", **args}
    return {"kind": "container", "engine": "docker", "image": None, "base_image": base, "build_args": build_args}


def built(host: Engine, settings: dict[str, object], vendor: str = "nvidia") -> tuple[Built, list[str]]:
    lines: list[str] = []
    server = ServerSpec(name="left", vendor=vendor)
    return asyncio.run(build(Place(host, server, settings, lines.append, host), vendor)), lines


def test_the_image_has_what_it_asks_for_and_the_torch_of_its_base(host: Engine, dockerd: Dockerd) -> None:
    made, lines = built(host, launch())
    facts = json.loads(dockerd.run("image", "inspect", made.tag).stdout)[0]
    assert made.image_id == facts["Id"]
    assert made.tag == image_tag(launch(), "nvidia")
    assert facts["Config"]["Labels"]["org.opencontainers.image.base.name"] == BASE
    assert facts["Config"]["Labels"]["org.opencontainers.image.version"] == made.tag.rpartition(":")[2]
    assert any("megatron_core-0.16.1" in line for line in lines)
    seen = dockerd.run(
        "run", "--rm", "--network", "host", made.tag, "cat", f"{SITE}/torch/version.py", "/opt/ekvi/image.json"
    )
    assert TORCH in seen.stdout
    assert "tokenizers-0.23.0" in seen.stdout
    assert "torch-" not in "".join(json.loads(seen.stdout[seen.stdout.index("{") :])["added"])


def test_building_again_gives_the_same_image(host: Engine) -> None:
    assert built(host, launch())[0] == built(host, launch())[0]


@pytest.mark.parametrize(
    ("wheels", "words"), [("hidden", "torch was replaced"), ("wants", "beside the base image's torch")]
)
def test_another_torch_fails_the_build(host: Engine, dockerd: Dockerd, wheels: str, words: str) -> None:
    before = dockerd.run("ps", "-aq").stdout
    with pytest.raises(LaunchRefused, match=words):
        built(host, launch(wheels=wheels))
    tag = image_tag(launch(wheels=wheels), "nvidia")
    assert dockerd.run("image", "inspect", tag, check=False).returncode != 0
    assert dockerd.run("ps", "-aq").stdout == before, "a step's container, with the build's arguments in it, stays"


def test_a_base_without_torch_gets_one_for_a_cpu_and_is_refused_for_gpus(host: Engine, dockerd: Dockerd) -> None:
    made, _ = built(host, launch(BARE), "cpu")
    added = json.loads(
        dockerd.run("run", "--rm", "--network", "host", made.tag, "cat", "/opt/ekvi/image.json").stdout
    )
    assert "torch-2.9.1-py3-none-any.whl" in added["added"]
    with pytest.raises(LaunchRefused, match="the base image has no torch"):
        built(host, launch(BARE), "amd")


def test_an_index_with_a_login_stays_out_of_argv_history_and_layers(host: Engine, dockerd: Dockerd) -> None:
    url = f"http://user:{TOKEN}@127.0.0.1:9/simple"
    with watching_argvs(TOKEN) as found:
        made, lines = built(host, launch(PIP_EXTRA_INDEX_URL=url))
    assert not found
    assert TOKEN not in "\n".join(lines)
    assert TOKEN not in dockerd.run("history", "--no-trunc", made.tag).stdout
    assert TOKEN not in dockerd.run("image", "inspect", made.tag).stdout
    assert TOKEN not in dockerd.run("save", made.tag).stdout


def test_an_unknown_base_is_one_sentence(host: Engine) -> None:
    with pytest.raises(LaunchRefused) as refused:
        built(host, launch("127.0.0.1:9/nobody/has:this"))
    assert "127.0.0.1:9/nobody/has:this: the registry cannot be reached from there" in str(refused.value)
    assert refused.value.hint


def test_an_image_that_was_not_built_is_refused_with_the_command_that_builds_it(host: Engine) -> None:
    server = ServerSpec(name="left", vendor="nvidia")
    settings = launch(SOME="thing")
    with pytest.raises(LaunchRefused, match="ekvi-cockpit build --profile duel --servers left"):
        asyncio.run(ensure_image(Place(host, server, settings, print, host, "duel")))
    built(host, launch())
    asyncio.run(ensure_image(Place(host, server, launch(), print, host)))
