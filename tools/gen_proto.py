"""Generates the protobuf code beside each .proto of the core; `--check` only says whether it is up to date."""

import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

#: protoc runs from here, so that generated files import each other as `lanefeed_core.proto.X_pb2`.
ROOT = Path(__file__).resolve().parent.parent / "trainer_lib"
FOLDER = Path("lanefeed_core/proto")


def generate(out: Path) -> None:
    """Run protoc into `out`; exits on an error of a proto file."""
    protos = sorted(str(p.relative_to(ROOT)) for p in (ROOT / FOLDER).glob("*.proto"))
    if not protos:
        sys.exit(f"no .proto file in {ROOT / FOLDER}")
    outs = [f"--{kind}_out={out}" for kind in ("python", "pyi", "grpc_python")]
    code = protoc.main(["protoc", f"-I{ROOT}", *outs, *protos])
    if code:
        sys.exit(f"protoc failed with {code}")


def generated(root: Path) -> dict[str, str]:
    """The text of every generated file below `root`, by name."""
    return {p.name: p.read_text() for p in sorted((root / FOLDER).glob("*_pb2*.py*")) if p.suffix in {".py", ".pyi"}}


def main() -> None:
    """Write the files, or with --check compare them."""
    if "--check" not in sys.argv:
        generate(ROOT)
        return
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        want, have = generated(Path(folder)), generated(ROOT)
    wrong = sorted(name for name in want.keys() | have.keys() if want.get(name) != have.get(name))
    if wrong:
        sys.exit(f"{', '.join(wrong)} in {ROOT / FOLDER}: not what protoc makes of the .proto files; run `make proto`")
    print("generated protobuf code is up to date")


if __name__ == "__main__":
    main()
