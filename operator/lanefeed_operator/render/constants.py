"""Every label, annotation, name, path and port that the operator writes into a cluster, in one place.

Read by the rest of `render`, and by the shell that observes what it made. Data only.
"""

from lanefeed_core.wire import CONTROL_TOKEN_NAME, CONTROL_TRUST_NAME
from lanefeed_operator.api.labels import JOB_LABEL, KUEUE_QUEUE, ROLE_LABEL

__all__ = [
    "AUDIENCE",
    "INDEX_LABEL",
    "JOB_LABEL",
    "MANAGED_BY",
    "METRICS_PORT",
    "METRICS_PORT_NAME",
    "PLAN_LABEL",
    "ROLE_LABEL",
    "SIDECAR",
    "TRAINER",
]

# ---- labels and annotations ------------------------------------------------------------------------------------

#: What every child carries; the shell watches Jobs and Pods with it.
MANAGED_BY = {"app.kubernetes.io/managed-by": "lanefeed"}
#: Number of the plan generation.
PLAN_LABEL = "lanefeed.dev/plan-generation"
#: UID of the ShardedTrainingJob: a child is adopted only with the same one.
UID_ANNOTATION = "lanefeed.dev/job-uid"
#: Digest of the plan document, on the pods: who reads one knows which plan it follows.
DIGEST_ANNOTATION = "lanefeed.dev/plan-digest"
MANIFEST_ANNOTATION = "lanefeed.dev/manifest"
#: Digest of the indexer's pod template, on its Job: whether the spec would make another one by now.
TEMPLATE_ANNOTATION = "lanefeed.dev/template-digest"
#: Prefix that only the operator may use.
OWN_PREFIX = "lanefeed.dev/"
#: Set by the Job controller on each pod.
INDEX_LABEL = "batch.kubernetes.io/job-completion-index"

MIN_PARALLELISM = "kueue.x-k8s.io/job-min-parallelism"
EQUAL_COMPLETIONS = "kueue.x-k8s.io/job-completions-equal-parallelism"
#: Passed from the ShardedTrainingJob to its Indexed Job as they are (labels and annotations).
QUEUE_KEYS = (
    KUEUE_QUEUE,
    "kueue.x-k8s.io/priority-class",
    MIN_PARALLELISM,
    EQUAL_COMPLETIONS,
    "kueue.x-k8s.io/elastic-job",
)
#: Topology requests are read from the pod template.
PODSET_PREFIX = "kueue.x-k8s.io/podset-"

# ---- names in a pod --------------------------------------------------------------------------------------------

#: Prefix of names that users may not give to containers and volumes.
RESERVED = "lanefeed-"
TRAINER = "trainer"
SIDECAR = "lanefeed-sidecar"
INDEXER = "lanefeed-indexer"
RUN_VOLUME = "lanefeed-run"
PLAN_VOLUME = "lanefeed-plan"
MANIFEST_VOLUME = "lanefeed-manifest"
TOKEN_VOLUME = "lanefeed-token"
TEMP_VOLUME = "lanefeed-tmp"
CACHE_VOLUME = "lanefeed-cache"

# ---- paths -----------------------------------------------------------------------------------------------------

#: tmpfs that the pod's containers share: socket, token, arena.
RUN_PATH = "/var/run/lanefeed"
#: Only in the sidecar.
PLAN_PATH = "/etc/lanefeed/plan"
MANIFEST_PATH = "/etc/lanefeed/manifest"
CONTROL_PATH = "/var/run/secrets/lanefeed.dev"
#: The decoded cache.
CACHE_PATH = "/var/cache/lanefeed"
TOKEN_FILE = CONTROL_TOKEN_NAME
TRUST_FILE = CONTROL_TRUST_NAME
#: Keys of the plan's ConfigMap: for sidecars, and for people.
PLAN_FILE = "plan.json"
POD_FILE = "pod.json"
READS_FILE = "reads.txt"
#: Keys of the manifest's ConfigMaps: manifest.0000, manifest.0001, ...; joined they are one manifest file.
MANIFEST_CHUNK = "manifest"

# ---- ports, times ----------------------------------------------------------------------------------------------

METRICS_PORT = 9404
METRICS_PORT_NAME = "feed-metrics"
RENDEZVOUS_PORT = 29500
#: Who a report's token is for: no other service accepts it.
AUDIENCE = "lanefeed.dev/coordinator"
TOKEN_SECONDS = 3600
#: Until the first frames are filled; after that many seconds the kubelet restarts the sidecar.
STARTUP_SECONDS = 600
#: On top of the time that ranks have for a checkpoint: the sidecar's last report,
FLUSH_SECONDS = 10
#: of which it needs these besides, to end.
END_SECONDS = 2
