"""data.images on its way: from a job's YAML to the indexer, the plan, the pod's configuration and its memory."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lanefeed_core.cursor import Cursor
from lanefeed_core.images import ImageColumn, ImageError, image_columns
from lanefeed_core.manifest import Field, Manifest, Shard
from lanefeed_core.plan import Plan
from lanefeed_core.podconfig import PodConfig
from lanefeed_core.stream import StreamSpec
from lanefeed_operator.api.load import load_job
from lanefeed_operator.api.spec import Job
from lanefeed_operator.errors import JobError
from lanefeed_operator.local.admission import _check_frozen
from lanefeed_operator.local.errors import LocalError
from lanefeed_operator.local.indexer import arguments as local_arguments
from lanefeed_operator.reconcile.dataset import freeze
from lanefeed_operator.reconcile.plans import info_of
from lanefeed_operator.render.indexer import arguments as cluster_arguments
from lanefeed_operator.render.sizes import sizes

JOB = """\
apiVersion: lanefeed.dev/v1alpha1
kind: ShardedTrainingJob
metadata:
  name: demo
spec:
  data:
    uri: data/
    columns: [image, label]
    images:
      - {column: image, height: 224, width: 224}
  batching:
    globalBatchSize: 64
  template:
    spec:
      containers:
        - name: trainer
          image: x
"""
IMAGE = ImageColumn(column="image", height=224, width=224)
FIELDS = (Field("image", "binary", True), Field("label", "int64"))
MANIFEST = Manifest(tuple(Shard(f"{n:03}.parquet", 15 << 20, (64,) * 8, (2 << 20,) * 8) for n in range(12)), FIELDS)


def job(text: str = JOB) -> Job:
    return load_job(text)


def test_the_defaults_are_what_most_want() -> None:
    assert job().spec.data.image_columns == (IMAGE,)
    assert (IMAGE.mode, IMAGE.resize, IMAGE.layout) == ("RGB", "CenterCrop", "CHW")
    assert IMAGE.shape == (3, 224, 224)
    assert replace(IMAGE, layout="HWC", mode="L", height=2).shape == (2, 224, 1)
    odd = "{column: image, height: 9, width: 8, mode: L, resize: None, layout: HWC}"
    found = job(JOB.replace("{column: image, height: 224, width: 224}", odd)).spec.data.image_columns
    assert found == (ImageColumn(column="image", height=9, width=8, mode="L", resize="None", layout="HWC"),)


@pytest.mark.parametrize(
    ("old", "new", "path", "text"),
    [
        ("height: 224", "height: 0", "spec.data.images[0].height", "equal to 1"),
        ("width: 224", "width: 9000", "spec.data.images[0].width", "8192"),
        ("width: 224", "width: 224, resize: Crop", "spec.data.images[0].resize", "CenterCrop"),
        ("[image, label]", "[label]", "spec.data.images[0].column", "is 'image', which data.columns does not name"),
        (
            "      - {column: image, height: 224, width: 224}\n",
            "      - {column: image, height: 224, width: 224}\n      - {column: image, height: 1, width: 1}\n",
            "spec.data.images[1].column",
            "is 'image', which another entry has: name each column once",
        ),
    ],
)
def test_what_cannot_be_is_named(old: str, new: str, path: str, text: str) -> None:
    assert old in JOB
    with pytest.raises(JobError) as caught:
        job(JOB.replace(old, new))
    found = {p.path: p.message for p in caught.value.problems}
    assert text in found[path]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"column": "a", "height": 1}, "give column, height and width"),
        ({"column": "a", "height": 1, "width": "2"}, "width of column 'a' is '2': it must be a number of pixels"),
        ({"column": "a", "height": True, "width": 2}, "height of column 'a' is True"),
        (
            {"column": "a", "height": 1, "width": 2, "mode": "BGR"},
            "mode of column .a. is .BGR.: it must be one of",
        ),
        ({"column": "", "height": 1, "width": 2}, "without a column"),
    ],
)
def test_the_core_refuses_what_reaches_it_otherwise(given: dict[str, object], text: str) -> None:
    with pytest.raises(ImageError, match=text):
        image_columns([given])


def test_both_indexers_are_told_of_it() -> None:
    want = json.dumps([IMAGE.to_dict()])
    for found in (local_arguments(job(), Path("/out")), cluster_arguments(job(), {})):
        assert found[found.index("--images") + 1] == want
        assert found[-2:] == ["--", "data/"]
    without = JOB.replace("    images:\n      - {column: image, height: 224, width: 224}\n", "")
    assert "--images" not in local_arguments(job(without), Path("/out"))


def test_a_pod_configuration_carries_it_and_others_are_as_they_were() -> None:
    spec = StreamSpec(seed=0, global_batch_size=1, lanes=1, window=1)
    config = PodConfig(
        job="j",
        job_uid="",
        pod_index=0,
        pod_uid="",
        plan=Plan(1, 1, 1, Cursor()),
        spec=spec,
        manifest_path="",
        run_dir="",
    )
    assert "images" not in json.loads(config.to_json())
    assert PodConfig.from_json(config.to_json()) == config
    asked = replace(config, images=(IMAGE,))
    assert PodConfig.from_json(asked.to_json()) == asked


def test_memory_counts_pixels() -> None:
    plan = Plan(1, 1, 1, Cursor())
    pixels = 64 * IMAGE.nbytes
    found = sizes(job().spec, plan, MANIFEST)
    assert pixels < found.slot < pixels + 8192
    # Two windows a lane fit the default budget, with a third of it left for row groups being decoded.
    stream = freeze(job(), info_of(MANIFEST))
    assert stream.window < 256
    assert 2 * stream.lanes * stream.window * IMAGE.nbytes < job().spec.sidecar.read_ahead_bytes * 3 / 4


def test_it_is_fixed_for_the_jobs_life() -> None:
    old, stream = job().spec, freeze(job(), info_of(MANIFEST))
    _check_frozen(old, job().spec, stream)
    new = job(JOB.replace("height: 224", "height: 225")).spec
    with pytest.raises(LocalError, match=r"spec.data.images was .*'height': 224.* and is .*'height': 225"):
        _check_frozen(old, new, stream)
