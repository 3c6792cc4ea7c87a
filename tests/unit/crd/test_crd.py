"""The CRD: structural, small, bounded, described, and of one mind with the typed API.

What only a server can say (the cost of CEL, its answers) is in on_server, which was run against Kubernetes 1.34.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from lanefeed_core.book import KEEP, Book, JobCommit
from lanefeed_core.ledger import Entry, Ledger
from lanefeed_core.stream import StreamSpec
from lanefeed_operator.api import crd, crd_rules, crd_schema, spec, status
from lanefeed_operator.api.crd_docs import DOCS, EXTRA
from lanefeed_operator.api.load import load_job
from lanefeed_operator.errors import JobError
from lanefeed_operator.reconcile import reconcile
from lanefeed_operator.reconcile import types as t
from sim.jobs import MANIFEST, NOW, kids, make_job, pod, view
from unit.crd.statuses import full_status
from unit.crd.structural import defaulted, faults, nodes, pruned
from unit.crd.wrong import CHANGES, WRONG, changed, good

ROOT = Path(__file__).resolve().parents[3]
SCHEMA = crd.schema()
SPEC, STATUS = SCHEMA["properties"]["spec"], SCHEMA["properties"]["status"]
PRESERVE = "x-kubernetes-preserve-unknown-fields"


def test_the_files_are_what_the_api_makes() -> None:
    done = subprocess.run([sys.executable, "tools/gen_crd.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_chart_keeps_the_definition_and_every_job_when_it_goes() -> None:
    text = (ROOT / "charts/lanefeed/templates/crd.yaml").read_text()
    body = "".join(line for line in text.splitlines(keepends=True) if not line.lstrip().startswith("{{"))
    assert yaml.safe_load(body) == crd.definition()
    assert crd.definition()["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    values = yaml.safe_load((ROOT / "charts/lanefeed/values.yaml").read_text())
    assert values["crds"] == {"install": True, "keep": True}


def test_it_is_below_60_kb_so_that_plain_kubectl_apply_takes_it() -> None:
    assert len((ROOT / "charts/lanefeed/templates/crd.yaml").read_bytes()) < 60_000
    assert len(json.dumps(crd.definition())) < 60_000


def test_every_schema_is_structural() -> None:
    for path, node in nodes(SCHEMA):
        assert "type" in node or node.get(PRESERVE) or node.get("x-kubernetes-int-or-string"), path
        assert not {"$ref", "oneOf", "allOf", "not", "nullable", "title"} & node.keys(), path
        for part in node.get("anyOf", ()):
            assert node["x-kubernetes-int-or-string"], path
            assert part.keys() == {"type"}, path
        assert ("items" in node) == (node.get("type") == "array"), path
        assert set(node.get("required", ())) <= node.get("properties", {}).keys(), path
        assert not ("properties" in node and "additionalProperties" in node), path


def test_bounds_are_numbers_that_the_server_can_hold() -> None:
    # 2**63 - 1 as a maximum became -2**63 in a real API server, which then refused its own default.
    for path, node in nodes(SCHEMA):
        for key in ("minimum", "maximum"):
            assert abs(node.get(key, 0)) <= 1 << 53, path
        if node.get("format") == "int32":
            assert node.get("maximum", 0) <= (1 << 31) - 1, path


def test_everything_under_a_rule_and_in_the_status_is_bounded() -> None:
    for part, root in (("spec", SPEC), ("status", STATUS)):
        for path, node in nodes(root, part):
            free = path.startswith("spec.template.spec.containers[]") and path.rpartition(".")[2] in LONG
            if node.get("type") == "array":
                assert "maxItems" in node, path
            if node.get("type") == "object" and "additionalProperties" in node:
                assert "maxProperties" in node, path
            if node.get("type") == "string" and "enum" not in node and not free and "{}" not in path:
                assert "maxLength" in node, path


#: Strings of the user's that no rule looks at: the template is Kubernetes' own.
LONG = {"command[]", "args[]", "value", "workingDir"}


def test_messages_do_not_make_texts_of_numbers() -> None:
    # string(int) is of any length to the server's estimate: four such messages were refused by a real one.
    for rules in crd_rules.RULES.values():
        for rule in rules:
            assert "string(" not in rule.get("messageExpression", ""), rule
            assert ":" in rule["message"], rule  # what is wrong: what to do
            assert "\n" not in rule["message"], rule
            assert len(rule["message"]) < 2048, rule


def test_rules_point_at_fields_that_there_are() -> None:
    for path, rules in crd_rules.RULES.items():
        node = crd._find(SCHEMA, path)
        assert node["x-kubernetes-validations"] == rules
        for rule in rules:
            assert rule["reason"] in ("FieldValueInvalid", "FieldValueRequired")
            if "fieldPath" in rule:
                crd._find(node, rule["fieldPath"].lstrip("."))


def test_a_rule_for_a_field_that_moved_is_noticed() -> None:
    with pytest.raises(KeyError, match=r"spec\.batching\.lane is not in the schema"):
        crd._find(SCHEMA, "spec.batching.lane")
    with pytest.raises(KeyError, match="gives no type"):
        crd._place(SCHEMA, "spec.zzz", {"maxLength": 3})


# ---- texts -----------------------------------------------------------------------------------------------------


def _models() -> list[type[BaseModel]]:
    found = [m for module in (spec, status) for m in vars(module).values() if isinstance(m, type)]
    return [m for m in found if issubclass(m, BaseModel) and m not in (spec.Metadata, BaseModel)]


def test_every_field_is_described_in_one_place() -> None:
    named = set()
    for model in _models():
        spoken = crd_schema.comments(model)
        for name in model.model_fields:
            key = f"{model.__name__}.{name}"
            named.add(key)
            assert not (name in spoken and key in DOCS), f"{key} is described twice"
    assert DOCS.keys() <= named, "texts of fields that are gone"
    for path, node in nodes(SCHEMA):
        above = path.rpartition(".")[0]
        if path and not path.endswith(("[]", "{}")) and path != "metadata" and "limits" not in above:
            assert node["description"].endswith("."), path
            assert not node["description"][0].islower(), path


def test_comments_above_fields_are_read() -> None:
    assert crd_schema.comments(spec.Elastic)["node_lost_seconds"].startswith("A pod on an unreachable node")
    text = SPEC["properties"]["elastic"]["properties"]["nodeLostSeconds"]["description"]
    assert text.endswith("0: never. Default: 300.")


def test_a_field_without_a_text_is_refused() -> None:
    class Job(BaseModel):
        x: int = 0

    with pytest.raises(KeyError, match=r"Job\.x has no description"):
        crd_schema.describe(Job, "x", spoken={})


# ---- the server's part and ours agree --------------------------------------------------------------------------


def _examples() -> list[Path]:
    return sorted(ROOT.glob("examples/*/*.yaml"))


@pytest.mark.parametrize("path", _examples(), ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_examples_fit_the_schema_and_survive_it(path: Path) -> None:
    document = yaml.safe_load(path.read_text())
    assert faults(document, SCHEMA) == []
    kept = SCHEMA | {"properties": SCHEMA["properties"] | {"metadata": {PRESERVE: True}}}
    stored = defaulted(pruned(document, kept), kept)
    job = load_job(path.read_text(), path)
    again = load_job(json.dumps(stored), "stored")
    assert again.spec == job.spec
    assert again.spec.template.model_dump(exclude_unset=True) == job.spec.template.model_dump(exclude_unset=True)


def test_defaults_are_those_of_the_models() -> None:
    stored = defaulted(good(), SCHEMA)["spec"]
    plain = spec.Spec.model_validate(good()["spec"])
    assert spec.Spec.model_validate(stored) == plain
    assert stored["sidecar"]["readAheadBytes"] == "512Mi"
    assert stored["shuffle"] == {"enabled": True, "seed": 0}
    # Nothing is added to what the user wrote for Kubernetes.
    assert stored["template"] == good()["spec"]["template"]
    for path, node in nodes(SPEC):
        if "default" in node:
            assert faults(defaulted(node["default"], node), node) == [], path


def test_fields_of_kubernetes_own_are_kept_in_the_template() -> None:
    document = good()
    pod = document["spec"]["template"]["spec"]
    pod |= {
        "fieldOfTomorrow": {"deep": [1]},
        "initContainers": [{"name": "proxy", "restartPolicy": "Always", "image": "p"}],
        "volumes": [{"name": "v", "emptyDir": {"medium": "Memory"}}],
    }
    pod["containers"][0] |= {
        "env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
        "volumeMounts": [{"name": "v", "mountPath": "/v", "recursiveReadOnly": "Enabled"}],
        "resources": {"limits": {"nvidia.com/gpu": 1}},
    }
    assert faults(document, SCHEMA) == []
    assert pruned(document["spec"]["template"], SPEC["properties"]["template"]) == document["spec"]["template"]


def test_unknown_fields_elsewhere_are_not() -> None:
    assert faults(changed("spec.batching.globalBatchsize", 3), SCHEMA) == [".spec.batching.globalBatchsize is unknown"]


#: Wrong in a cluster only: a trainer's image, names that only a cluster has, bounds of the stored object.
CLUSTER_ONLY = {"no-image", "steal", "many-columns", "string"}


@pytest.mark.parametrize("name", sorted(WRONG.keys() - CLUSTER_ONLY))
def test_what_the_server_refuses_the_loader_refuses(name: str) -> None:
    path, value, _ = WRONG[name]
    with pytest.raises(JobError):
        load_job(json.dumps(changed(path, value)))


def test_the_good_one_is_good() -> None:
    assert faults(good(), SCHEMA) == []
    load_job(json.dumps(good()))
    for path, value, _ in CHANGES.values():
        load_job(json.dumps(changed(path, value)))  # as a new job each would do


def test_all_that_the_frozen_stream_is_made_of_is_immutable() -> None:
    """`reconcile.dataset.freeze` reads these; a field that joins StreamSpec must be added here, and to the rules."""
    made_of = {
        "seed": "spec.shuffle",
        "window": "spec.shuffle",
        "shuffle": "spec.shuffle",
        "global_batch_size": "spec.batching",
        "lanes": "spec.batching",
        "last_batch": "spec.batching",
        "boundary": "spec.epochBoundary",
    }
    assert made_of.keys() == StreamSpec.__dataclass_fields__.keys()
    for path in {*made_of.values(), "spec.data", "spec.epochs", "spec.maxSteps"}:
        assert any("oldSelf" in rule["rule"] for rule in crd_rules.RULES[path]), path
    frozen = " ".join(rule["rule"] for rule in crd_rules.RULES["spec.batching"])
    names = {f.alias or n for n, f in spec.Batching.model_fields.items()}
    assert set(re.findall(r"oldSelf\.(\w+)", frozen)) == names - {"uneven"}


# ---- status ----------------------------------------------------------------------------------------------------


def test_a_full_status_is_neither_pruned_nor_refused() -> None:
    document = json.loads(json.dumps(full_status().to_dict()))
    assert faults(document, STATUS) == []
    assert pruned(document, STATUS) == document
    assert set(document) | {k.partition(".")[2] for k in EXTRA} >= STATUS["properties"].keys() - {"stop", "stream"}


def test_paths_of_columns_and_scale_are_in_the_schema() -> None:
    version = crd.definition()["spec"]["versions"][0]
    scale = version["subresources"]["scale"]
    columns = version["additionalPrinterColumns"]
    assert [c["name"] for c in columns if not c.get("priority")] == [
        "State", "Reason", "Replicas", "Ready", "Epoch", "Step", "Stall%", "Age",
    ]  # fmt: skip
    for path in [*scale.values(), *(c["jsonPath"] for c in columns)]:
        if not path.startswith(".metadata"):
            crd._find(SCHEMA, path.lstrip(".").partition("[?")[0])
    for column in columns:
        if "[?" not in column["jsonPath"] and column["type"] != "date":
            assert crd._find(SCHEMA, column["jsonPath"].lstrip("."))["type"] == column["type"]


def test_names_by_which_people_call_it() -> None:
    names = crd.definition()["spec"]["names"]
    assert names["shortNames"] == ["stj"]
    assert names["plural"] == "shardedtrainingjobs"
    assert "all" in names["categories"]


# ---- the oracle bites ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.replicas", 0),
        ("spec.replicas", True),
        ("spec.replicas", "2"),
        ("spec.batching.lastBatch", "drop"),
        ("spec.sidecar.readAheadBytes", "1 GB"),
        ("spec.data.columns", ["a"] * 257),
        ("spec.data.columns", [""]),
        ("spec.restartToken", "x" * 65),
    ],
)
def test_the_validator_refuses(path: str, value: object) -> None:
    assert len(faults(changed(path, value), SCHEMA)) == 1


@settings(max_examples=10, deadline=None)
@given(st.text(max_size=5000), st.text(max_size=5000), st.integers(1, 2000), st.booleans())
def test_the_worst_status_of_reconcile_is_within_the_bounds(message: str, path: str, ranks: int, failing: bool) -> None:
    """A bound that is too small would have the server refuse the status: the job would stand still."""
    name = "\u00e9" * 256
    ledger = Ledger({0: Entry(2**62, 2**64 - 1)})
    proof = status.EpochProof(epoch=1, samples=2**60, digest="f" * 16, expected="e" * 16, verified=True)
    commits = [JobCommit(2**40 + i, name, 2**30, ledger) for i in range(KEEP)]
    feed = t.FeedView(
        version=9,
        plan_generation=1,
        ranks={r: view(r, 2**40) for r in range(ranks)},
        book=Book(1, ranks, commits, void=commits[:4]).to_dict(),
        last_step=2**40,
        last_name=name,
        last_generation=1,
        proofs=tuple(proof.model_copy(update={"epoch": e}) for e in range(500)),
        failures=(t.FeedFailure("DataError", message, not failing),),
        quarantined=tuple((f"{path}-{n}", message) for n in range(300)),
        disagree=dict.fromkeys(range(ranks), 2**40),
    )
    children = kids(1, ranks, failures=dict.fromkeys(range(ranks), 99), pods=(pod(0, "Failed", message=message),))
    seen = t.Observed({1: children}, frozenset({1}), MANIFEST, feed)
    job = make_job(replicas=1, batching={"globalBatchSize": 5000, "uneven": "Allow", "lanes": 1, "lastBatch": "Pad"})
    found = status.Status()
    for _ in range(6):
        found = reconcile(job, found, seen, NOW).status
        document = json.loads(json.dumps(found.to_dict()))
        assert faults(document, STATUS) == []
        assert pruned(document, STATUS) == document
