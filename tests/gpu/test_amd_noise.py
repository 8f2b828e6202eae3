"""Whatever stands in the files of a GPU: a reading, None, or a SourceError, and nothing else."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from runners.agent.gpu.amd_sysfs import AmdSysfs
from runners.agent.gpu.source import FIELDS, SourceError
from tests.fakes.amd_sysfs import GIB, MI300X, Tree, sensors

_TEXTS = "N/A|-1|65535|4294967295|18446744073709551615|1e9|nan|0x7|ue: x|domain \u00b2|location_id 99999999999"
ODD = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"", b"\n", b"\xff\xfe", *(f"{text}\n".encode() for text in _TEXTS.split("|"))]),
)


@given(st.lists(st.tuples(st.integers(0, 200), ODD), min_size=1, max_size=8))
@settings(max_examples=100, deadline=None)
def test_files_with_anything_in_them(noise: list[tuple[int, bytes]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(Path(folder) / "sys")
        gpu = tree.gpu("0000:0c:00.0", "v1.6", MI300X, partitions=2, mode="DPX")
        sensors(gpu, [("junction", 40), ("edge", 30)], 100)
        tree.gpu("0000:c1:00.0", "v1.3", {}, device_id="0x740c")
        tree.link(1, 2)
        tree.process(1, {1: GIB})
        files = sorted(path for path in tree.root.rglob("*") if path.is_file())
        for place, content in noise:
            files[place % len(files)].write_bytes(content)
        source = AmdSysfs(str(tree.root))
        try:
            source.open()
            for ask in (source.hot, source.slow, source.energy, source.static, source.hot, source.slow):
                for reading in ask():
                    assert set(reading) <= set(FIELDS)
        except SourceError:
            pass
        finally:
            source.close()
