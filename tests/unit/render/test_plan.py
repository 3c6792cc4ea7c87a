"""The plan's and the manifest's ConfigMaps, and the memory of a pod: what sidecars start from, and what people read."""

import base64
import re
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from lanefeed_core import manifest_codec
from lanefeed_core.board import board_bytes
from lanefeed_core.lanes import Lanes
from lanefeed_core.layout import HEADER_BYTES, fixed_frame_bytes
from lanefeed_core.manifest import Field
from lanefeed_core.podconfig import PodConfig
from lanefeed_operator.api.quantity import parse_bytes
from lanefeed_operator.api.spec import Job
from lanefeed_operator.api.status import CursorStatus, Status
from lanefeed_operator.local.plans import pod_config as local_config
from lanefeed_operator.reconcile.dataset import freeze, spec_of
from lanefeed_operator.reconcile.types import ManifestInfo
from lanefeed_operator.render import RenderError, manifest_maps, pod_config, sizes
from lanefeed_operator.render import constants as c
from lanefeed_operator.render.plan import CHUNK_BYTES, plan_digest, reads_text
from lanefeed_operator.render.sizes import OVERHEAD_BYTES, width
from lanefeed_sidecar.formats.types import column_of, plain_type
from unit.render.objects import SETTINGS, everything, make_plan, manifest
from unit.render.test_pods import container, make, pod_of

MIB = 1 << 20


def config_of(job: Job) -> PodConfig:
    return PodConfig.from_json(everything(job)["plan"]["data"][c.POD_FILE])


# ---- the plan --------------------------------------------------------------------------------------------------


def test_the_plan_is_immutable_named_by_its_generation_and_mounted_by_that_name() -> None:
    objects = everything(make(), generation=4)
    assert objects["plan"]["immutable"] is True
    assert objects["plan"]["metadata"]["name"] == "good-4-plan"
    pod = objects["pods"]["spec"]["template"]
    (volume,) = [v for v in pod["spec"]["volumes"] if v["name"] == c.PLAN_VOLUME]
    assert volume["configMap"]["name"] == "good-4-plan"
    marks = [x["metadata"]["annotations"]["lanefeed.dev/plan-digest"] for x in (objects["plan"], objects["pods"], pod)]
    assert len(set(marks)) == 1


def test_sidecars_start_from_what_local_ones_start_from() -> None:
    """Every field of a PodConfig that is not a path, a port or the pod's own must agree with the local shell's."""
    job = make({"sidecar": {"decodeThreads": 3, "slots": 5, "slotBytes": "8Mi"}, "maxSteps": 9})
    data = manifest()
    info = ManifestInfo(data.digest, data.rows, len(data.shards), data.num_row_groups, data.row_bytes)
    cursor = CursorStatus(total_step=4, commit="x", plan_generation=1)
    status = Status(stream=freeze(job, info), cursor=cursor)
    plan = make_plan(job)
    assert status.stream is not None
    ours = pod_config(job, plan, spec_of(status.stream), cursor, sizes(job.spec, plan, data), SETTINGS)
    paths = dict.fromkeys(("run_dir", "manifest", "token", "cache"), Path("/x"))
    theirs = local_config(job, status, plan, stream=status.stream, uid="u", index=0, target="t", **paths)
    own = {"pod_index", "pod_uid", "manifest_path", "run_dir", "metrics_port", "metrics_host"}
    own |= {"coordinator", "coordinator_token_path"}
    for field in fields(PodConfig):
        if field.name not in own:
            assert getattr(ours, field.name) == getattr(theirs, field.name), field.name
    assert (ours.pod_index, ours.pod_uid) == (-1, "")


def test_paths_in_the_configuration_are_mounted() -> None:
    config, mounts = config_of(make()), container(pod_of(make()), c.SIDECAR)["volumeMounts"]
    folders = {m["mountPath"] for m in mounts}
    files = [config.manifest_path, config.coordinator_token_path]
    assert {config.run_dir, *(str(Path(file).parent) for file in files)} <= folders
    assert config.metrics_host == "0.0.0.0"


def test_the_digest_follows_what_sidecars_do_and_not_where_they_report_to() -> None:
    config = config_of(make())
    assert plan_digest(config) == plan_digest(replace(config, coordinator="elsewhere:1"))
    assert plan_digest(config) != plan_digest(replace(config, slots=9))


@pytest.mark.parametrize(("replicas", "ranks"), [(1, 1), (4, 2), (8, 4)])
def test_a_person_reads_who_reads_what_and_no_row_is_left_out(replicas: int, ranks: int) -> None:
    job = make({"replicas": replicas, "ranksPerReplica": ranks})
    text = everything(job)["plan"]["data"][c.READS_FILE]
    head, *lines = text.splitlines()
    assert head.startswith(f"plan 1: {replicas} pods x {ranks} ranks, from epoch 0 step 0")
    assert [line.partition(":")[0] for line in lines] == [f"pod {n}" for n in range(replicas)]
    seen = {shard.path: np.zeros(shard.rows, bool) for shard in manifest().shards}
    for path, start, stop in re.findall(r"(\S+)\[(\d+):(\d+)\]", "\n".join(lines)):
        seen[path][int(start) : int(stop)] = True
    assert all(rows.all() for rows in seen.values())


def test_the_plan_fits_a_config_map_whatever_the_size() -> None:
    job = make({"replicas": 1024, "batching": {"globalBatchSize": 4096, "lanes": 4096}})
    data = manifest(20_000, 20)
    plan = make_plan(job)
    lanes = Lanes(spec_of(freeze(job, ManifestInfo(rows=data.rows))), data.shard_rows)
    text = reads_text(plan, lanes, data)
    assert len(text.encode()) <= 256 << 10
    assert text.count("\npod ") == 1024
    assert "..." in text
    huge = replace(plan, replicas=2000, ranks_per_replica=1)
    assert "`lanefeed plan` spells them out" in reads_text(huge, lanes, data)


# ---- the manifest ----------------------------------------------------------------------------------------------


def test_chunks_joined_are_the_manifest() -> None:
    data = manifest()
    # Eleven, all that are allowed: as texts 10 must not come before 2.
    encoded = manifest_codec.encode(data) + b"".join(bytes([n]) * CHUNK_BYTES for n in range(10))
    maps = manifest_maps(make(), encoded, data.digest)
    assert [m["metadata"]["name"] for m in maps] == [f"good-manifest-{n}" for n in range(11)]
    assert all(m["immutable"] for m in maps)
    parts = {key: base64.b64decode(value) for m in maps for key, value in m["binaryData"].items()}
    assert b"".join(parts[key] for key in sorted(parts)) == encoded
    for m in maps:
        assert sum(map(len, m["binaryData"].values())) < (1 << 20) + 1  # the server counts decoded bytes: less still


def test_more_than_fits_is_refused_with_the_way_out() -> None:
    with pytest.raises(RenderError, match=r"spec\.data\.uri: names so many shards .*: use fewer, larger shards"):
        manifest_maps(make(), b"x" * (12 * CHUNK_BYTES), "d")


# ---- memory ----------------------------------------------------------------------------------------------------


def test_the_request_holds_arena_read_ahead_and_overhead_and_limit_and_tmpfs_two_arenas() -> None:
    job = make({"ranksPerReplica": 4, "sidecar": {"slots": 6, "slotBytes": "9000000", "readAheadBytes": "1Gi"}})
    found = sizes(job.spec, make_plan(job), manifest())
    assert found.slot == 9_003_008  # whole pages
    assert found.arena == HEADER_BYTES + 4 * (6 * 9_003_008 + board_bytes(6))
    assert found.memory >= found.arena + (1 << 30) + OVERHEAD_BYTES
    assert found.tmpfs >= 2 * found.arena
    assert found.memory % MIB == found.tmpfs % MIB == 0
    pod = pod_of(job)
    own = container(pod, c.SIDECAR)
    assert parse_bytes(own["resources"]["requests"]["memory"]) == found.memory
    # A sidecar that restarts makes its arena while the trainer still reads from the old one, whose pages the pod pays.
    assert parse_bytes(own["resources"]["limits"]["memory"]) == found.limit >= found.memory + found.arena - MIB
    (run,) = [v["emptyDir"] for v in pod["volumes"] if v["name"] == c.RUN_VOLUME]
    assert run["medium"] == "Memory"
    assert parse_bytes(run["sizeLimit"]) == found.tmpfs
    assert config_of(job).slot_bytes == found.slot


def test_smaller_memory_is_refused_and_larger_kept() -> None:
    for kind, need in (("limits", "793Mi"), ("requests", "761Mi")):
        with pytest.raises(RenderError, match=rf"resources\.{kind}\.memory: is 100Mi: .*arena.* need {need}; raise it"):
            pod_of(make({"sidecar": {"resources": {kind: {"memory": "100Mi"}}}}))
    with pytest.raises(RenderError, match="'lots' is not a quantity"):
        pod_of(make({"sidecar": {"resources": {"limits": {"memory": "lots"}}}}))
    given = {"limits": {"memory": "2Gi", "cpu": "2"}, "claims": []}
    made = container(pod_of(make({"sidecar": {"resources": given}})), c.SIDECAR)["resources"]
    assert made == {"limits": {"memory": "2Gi", "cpu": "2"}, "requests": {"memory": "761Mi"}, "claims": []}
    cpu = container(pod_of(make({"sidecar": {"resources": {"requests": {"cpu": 4}}}})), c.SIDECAR)["resources"]
    assert cpu == {"requests": {"cpu": 4, "memory": "761Mi"}, "limits": {"memory": "793Mi"}}
    more = container(pod_of(make({"sidecar": {"resources": {"requests": {"memory": "1Gi"}}}})), c.SIDECAR)["resources"]
    assert more["limits"]["memory"] == "1Gi"


TYPES = [
    *(pa.int8(), pa.uint16(), pa.int32(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.bool_()),
    *(pa.date32(), pa.date64(), pa.time32("s"), pa.time64("us"), pa.timestamp("ns", "UTC"), pa.duration("ms")),
    *(pa.binary(16), pa.list_(pa.int32(), 128), pa.list_(pa.list_(pa.uint8(), 4), 3)),
    *(pa.list_(pa.field("x", pa.float32(), nullable=False), 5), pa.list_(pa.timestamp("us", "Europe/Berlin"), 2)),
    *(pa.string(), pa.binary(), pa.list_(pa.int64())),
]


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_widths_are_those_of_the_sidecar(kind: pa.DataType) -> None:
    column = column_of("x", str(plain_type(kind)), nullable=False)
    assert not hasattr(column, "reason"), column
    assert width(str(plain_type(kind))) == (None if column.ragged else column.row_bytes)


def test_the_slot_is_the_one_that_the_sidecar_would_choose() -> None:
    kinds = [pa.int64(), pa.list_(pa.uint8(), 150_528)]
    columns = [column_of(f"c{n}", str(k), nullable=n == 0) for n, k in enumerate(kinds)]
    data = manifest(fields=tuple(Field(f"c{n}", str(k), n == 0) for n, k in enumerate(kinds)))
    # Three ranks of 32: 10, 11 and 11 rows.
    job = make({"replicas": 3, "batching": {"globalBatchSize": 320, "uneven": "Allow"}, "data": {"uri": "/d"}})
    found = sizes(job.spec, make_plan(job), data)
    wanted = fixed_frame_bytes(columns, 107, 1, mask=True)
    assert found.slot == -(-wanted // 4096) * 4096 > 4 * MIB
    spec = job.spec.model_copy(update={"data": job.spec.data.model_copy(update={"columns": ["c0"]})})
    assert sizes(spec, make_plan(job), data).slot == 4 * MIB


def test_ragged_rows_get_room() -> None:
    data = manifest(rows=1000, fields=(Field("text", "string"),))
    job = make({"batching": {"globalBatchSize": 32_768}, "data": {"uri": "/d"}})
    found = sizes(job.spec, make_plan(job), data)
    assert found.slot >= 4 * 16_384 * data.row_bytes
