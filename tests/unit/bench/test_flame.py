"""Flame graphs: stacks are merged as they were sampled, and what is drawn is as wide as its share."""

import re
import sys
from pathlib import Path
from xml.etree import ElementTree as etree

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from bench import flame  # noqa: E402

#: As py-spy's raw format has them.
RAW = """\
process 12:"python -m x";thread (0x7F): "decode_0";Thread._bootstrap (threading.py:1002);read (a/formats/reader.py:5) 60
process 12:"python -m x";thread (0x7E): "decode_1";Thread._bootstrap (threading.py:1002);read (a/formats/reader.py:9) 20
process 12:"python -m x";thread (0x7D): "MainThread";<module> (run.py:1);serve (b/supervisor.py:3) 20
"""


def test_threads_of_one_kind_are_one_and_lines_are_not_told_apart() -> None:
    stacks = list(flame.folded(RAW, "sidecar"))
    read = ["sidecar", "decode", "read (formats/reader.py)"]
    assert stacks == [(read, 60), (read, 20), (["sidecar", "MainThread", "serve (b/supervisor.py)"], 20)]
    assert flame.shares(stacks)[0] == (0.8, "sidecar", "read (formats/reader.py)")


def test_boxes_are_as_wide_as_their_share() -> None:
    trainer = [(["trainer", "MainThread", "next <&> (x.py)"], 100)]
    text = flame.render([*flame.folded(RAW, "sidecar"), *trainer], "a & b")
    etree.fromstring(text)
    boxes = dict(re.findall(r"<title>([^<]*): ([0-9.]+)%</title>", text))
    assert boxes["a &amp; b"] == "100.0"
    assert boxes["read (formats/reader.py)"] == "40.0"
    assert boxes["next &lt;&amp;&gt; (x.py)"] == "50.0"
    widths = [float(w) for w in re.findall(r'<rect x="[0-9.]+" y="[0-9]+" width="([0-9.]+)"', text)]
    assert max(widths) <= flame.WIDTH
    # What is too narrow to be seen is not drawn.
    few = flame.render([*flame.folded(RAW, "sidecar"), (["sidecar", "rare"], 0)], "x")
    assert "rare" not in few
