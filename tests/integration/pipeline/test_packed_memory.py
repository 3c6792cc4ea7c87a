"""Memory while documents are packed is bounded by the spec, also where one row group is four times the budget."""

from pathlib import Path

import pytest

from lanefeed_core.packing import MODES, PackingRequest
from lanefeed_core.stream import StreamSpec
from lanefeed_sidecar.index import build_manifest
from support import skewed as k
from support.cgroup import memory_cgroup

#: What the design allows above arena and read-ahead.
OVERHEAD = 200 * k.MIB
SPEC = StreamSpec(seed=3, global_batch_size=64, lanes=4, window=128)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_a_row_group_four_times_the_budget(mode: str, tmp_path: Path) -> None:
    budget = 64 * k.MIB
    k.write(tmp_path / "data", "lists", 4 * budget, 4 * k.MIB)
    request = PackingRequest(1536, eos_token=7, mode=mode, cross_document_mask=True)
    manifest = build_manifest([str(tmp_path / "data")], packing=request, digest="Never").manifest
    with memory_cgroup() as cgroup, k.run_folder() as place:
        pod = k.config(place, manifest, SPEC, ranks=1, budget=budget, epochs=1, decode_threads=2)
        fed = k.feed(cgroup, pod, manifest, None)
    assert not fed.errors
    assert fed.steps == manifest.rows // SPEC.global_batch_size
    assert fed.peak <= fed.arena + budget + OVERHEAD, k.figures(fed, budget)
    assert fed.rss <= fed.arena + budget + OVERHEAD, k.figures(fed, budget)
