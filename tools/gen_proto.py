"""Generates the protobuf code beside lanefeed.proto; `--check` only says whether it is up to date."""

import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent / "trainer_lib"
PROTO = "lanefeed_core/proto/lanefeed.proto"
MADE = ("lanefeed_pb2.py", "lanefeed_pb2.pyi", "lanefeed_pb2_grpc.py")


def generate(out: Path) -> None:
    """Run protoc into `out`; exits on an error of the proto file."""
    target = f"{out}"
    code = protoc.main(
        ["protoc", f"-I{ROOT}", f"--python_out={target}", f"--pyi_out={target}", f"--grpc_python_out={target}", PROTO]
    )
    if code:
        sys.exit(f"protoc failed with {code}")


def main() -> None:
    """Write the files, or with --check compare them."""
    if "--check" not in sys.argv:
        generate(ROOT)
        return
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        made = Path(folder) / PROTO
        for name in MADE:
            here = ROOT / Path(PROTO).parent / name
            if not here.exists() or here.read_text() != (made.parent / name).read_text():
                sys.exit(f"{here} is not what protoc makes of {PROTO}: run `make proto`")
    print("generated protobuf code is up to date")


if __name__ == "__main__":
    main()
