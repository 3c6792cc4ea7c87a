"""Packed jobs on their way: to the indexer's arguments, to a sidecar's size, and what cannot change while they live."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lanefeed_core.manifest import Field, Manifest, Shard
from lanefeed_core.packing import BEST_FIT, Packing, PackingRequest
from lanefeed_operator.api.load import load_job
from lanefeed_operator.api.spec import Job
from lanefeed_operator.local import admission, indexer
from lanefeed_operator.local.errors import LocalError
from lanefeed_operator.reconcile.dataset import freeze
from lanefeed_operator.reconcile.plans import info_of
from lanefeed_operator.render import sizes
from lanefeed_operator.render.indexer import arguments
from lanefeed_sidecar.index import cli
from lanefeed_sidecar.index.options import packing_of
from unit.render.objects import make_plan

JOB = """\
apiVersion: lanefeed.dev/v1alpha1
kind: ShardedTrainingJob
metadata: {name: demo}
spec:
  data: {uri: /data}
  batching:
    globalBatchSize: 1024
    layout: Packed
    packed: {sequenceLength: 2048, eosToken: 5, mode: BestFit, crossDocumentMask: true}
  template: {spec: {containers: [{name: trainer, image: x}]}}
"""
FULL = PackingRequest(2048, "", 5, BEST_FIT, True)


def job(text: str = JOB, **packed: Any) -> Job:
    found = load_job(text)
    batching = found.spec.batching
    assert batching.packed is not None
    batching = batching.model_copy(update={"packed": batching.packed.model_copy(update=packed)})
    return found.model_copy(update={"spec": found.spec.model_copy(update={"batching": batching})})


def dataset(packing: Packing) -> Manifest:
    shard = Shard("a.parquet", 1 << 20, (4096,), (4096 * packing.sequence_bytes,), documents=(1000,))
    return Manifest((shard,), (Field("tokens", "list<item: int32>"),), packing=packing)


def parsed(options: list[str]) -> argparse.Namespace:
    return cli._arguments(options)


@pytest.mark.parametrize("packed", [{}, {"column": "-odd name"}, {"eos_token": None, "cross_document_mask": False}])
def test_both_shells_tell_the_indexer_all_of_it(tmp_path: Path, packed: dict[str, Any]) -> None:
    wanted = replace(FULL, **packed)
    for options in (indexer.arguments(job(**packed), tmp_path / "m"), arguments(job(**packed), {})):
        args = parsed(options)
        assert packing_of(args) == wanted
        assert args.uri == ["/data"]


def test_the_sidecar_is_sized_by_sequences() -> None:
    packing = Packing("tokens", "int32", 2048, None, BEST_FIT, True)
    made, data = job(), dataset(packing)
    plan = make_plan(made)
    found = sizes(made.spec, plan, data).slot
    assert 1024 * packing.sequence_bytes < found < 1030 * packing.sequence_bytes
    assert freeze(made, info_of(data)).window == 4096


def test_what_a_sample_is_cannot_change() -> None:
    old = job()
    stream = freeze(old, info_of(dataset(Packing("tokens", "int32", 2048))))
    admission._check_frozen(old.spec, old.spec, stream)
    with pytest.raises(LocalError, match=r"spec\.batching\.packed was .*'sequenceLength': 2048.* it is fixed"):
        admission._check_frozen(old.spec, job(sequence_length=4096).spec, stream)
    rows = load_job(JOB.replace("    layout: Packed\n", "").replace("    packed:", "    #"))
    with pytest.raises(LocalError, match=r"spec\.batching\.layout was 'Packed' when the job began and is 'Rows' now"):
        admission._check_frozen(old.spec, rows.spec, stream)
