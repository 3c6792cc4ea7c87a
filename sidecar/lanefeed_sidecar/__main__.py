"""`python -m lanefeed_sidecar`; see `main`."""

import os
import sys

from lanefeed_sidecar.main import main

if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: native threads of libraries that are alive at the interpreter's end can hang it (arrow#50188).
    os._exit(code)
