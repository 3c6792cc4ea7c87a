"""What a sample is when it is no row as stored: sequences packed from documents, pixels of encoded images.

The trainer compares all that it gets with arrays that are made here, from the documents and images themselves, by the
core's `pack` and by Pillow (CHAOS_TRUTH). The indexer packs and counts in a container of its own; the sidecar decodes
images with its own image's Pillow, on a read-only root and in the memory that the operator gave it.
"""

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from e2e.cluster import Cluster
from e2e.job import Job
from e2e.lifetime import job
from e2e.scenarios import scenario
from lanefeed_core.packing import BEST_FIT, PackingRequest
from lanefeed_sidecar.index import build_manifest
from support.token_files import Lists, expected, lists, write_documents

CALM = ("node1", "node2")
#: Documents of each file, and of a row group; the longest is longer than a sequence. 4,000 sequences: 145 steps.
DOCUMENTS, GROUP, LONGEST = (2600, 900, 1700, 800), 150, 90
SEQUENCE, EOS = 64, 7
#: Images of each file. 22 steps.
IMAGES, SIDE = (230, 90, 280), 32


def texts() -> dict[str, Lists]:
    """File -> its documents."""
    return {f"{number}.parquet": lists(number, count, LONGEST) for number, count in enumerate(DOCUMENTS)}


def write_texts(folder: Path) -> None:
    """Documents of int32 tokens, some null."""
    for name, documents in texts().items():
        write_documents(folder / name, documents, group=GROUP)


def picture(number: int) -> bytes:
    """A JPEG of 64 x 48 in a colour of its own: no version of a decoder rounds an even area in another way."""
    colour = (number % 8 * 32 + 8, number // 8 % 8 * 32 + 8, number // 64 * 24 + 8)
    out = io.BytesIO()
    Image.new("RGB", (64, 48), colour).save(out, "JPEG", quality=95)
    return out.getvalue()


def write_pictures(folder: Path) -> None:
    """JPEGs with the number of each."""
    folder.mkdir(parents=True)
    first = 0
    for number, count in enumerate(IMAGES):
        ids = range(first, first + count)
        table = pa.table({"id": pa.array(ids, pa.int64()), "image": pa.array(map(picture, ids), pa.binary())})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=64)
        first += count


def pixels(number: int) -> np.ndarray:
    """What is delivered of a picture: channels first."""
    decoded = np.asarray(Image.open(io.BytesIO(picture(number))).convert("RGB").resize((SIDE, SIDE)))
    return decoded.transpose(2, 0, 1)


def knows(made: Job, **columns: np.ndarray) -> None:
    """Give the trainer what each column must hold, and the nodes that stay."""
    folder = made.folder / "truth"
    folder.mkdir()
    for name, values in columns.items():
        np.save(folder / f"{name}.npy", values)
    made.spec["template"] = {"spec": made.pod(nodes=CALM, env={"CHAOS_TRUTH": "/e2e/truth"})}


@scenario("calm")
def test_packed_documents(cluster: Cluster) -> None:
    """`layout: Packed`: a pod is deleted by force, then 2 -> 3 pods; no sequence is lost, repeated or another one."""
    with job(cluster, "packed", write_texts) as made:
        packed = {"sequenceLength": SEQUENCE, "eosToken": EOS, "mode": "BestFit", "crossDocumentMask": True}
        made.spec["batching"] |= {"layout": "Packed", "packed": packed}
        request = PackingRequest(SEQUENCE, "", EOS, BEST_FIT, True)
        manifest = build_manifest([str(made.folder / "data")], packing=request).manifest
        made.samples = [shard.rows for shard in manifest.shards]
        assert manifest.packing is not None
        parts = expected(manifest, texts(), GROUP, manifest.packing)
        assert sum(part.count for part in parts) == manifest.rows, "the indexer counts what packing gives"
        knows(
            made,
            tokens=np.concatenate([part.tokens for part in parts]),
            lengths=np.concatenate([part.lengths for part in parts]),
            document_ids=np.concatenate([part.documents for part in parts if part.documents is not None]),
            position_ids=np.concatenate([part.positions for part in parts if part.positions is not None]),
        )
        made.apply()
        made.reaches(28, seconds=120)
        victim = made.living()[1]
        name, gone = victim["metadata"]["name"], victim["metadata"]["uid"]
        cluster.kubectl("-n", made.namespace, "delete", "pod", name, "--force", "--grace-period=0")
        made.reaches(49)
        assert gone not in {pod["metadata"]["uid"] for pod in made.living()}
        made.scale(3)
        stop = made.leaves()
        made.seen(stop + 14, generation=2)
        status = made.completes()
        assert (status["planGeneration"], status["replicas"], status["restarts"]["resizes"]) == (2, 3, 1)
        assert status["stream"]["rows"] == manifest.rows


@scenario("calm")
def test_images(cluster: Cluster) -> None:
    """`data.images`: a sidecar is killed; the next one decodes on, and nobody else notices."""
    with job(cluster, "images", write_pictures, epochs=4) as made:
        image = {"column": "image", "height": SIDE, "width": SIDE, "resize": "Stretch"}
        made.spec["data"] |= {"columns": ["id", "image"], "images": [image]}
        count = sum(IMAGES)
        knows(made, id=np.arange(count), image=np.stack([pixels(number) for number in range(count)]))
        made.apply()
        made.reaches(14, seconds=120)
        victim = made.living()[1]
        cluster.kill(victim, "lanefeed-sidecar")
        made.wait(lambda: made.sidecar_restarts(victim) == 1, 60, "the sidecar's restart")
        made.reaches(42)
        assert len({pod["metadata"]["uid"] for pod in made.pods()}) == 2
        status = made.completes()
        assert status["restarts"]["failures"] == 0, "a sidecar's death is no failure of the program"
