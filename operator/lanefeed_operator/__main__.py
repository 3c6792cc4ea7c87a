"""`python -m lanefeed_operator`: the operator's process; see runtime.settings for its environment."""

import logging
import os
import sys

from lanefeed_operator.runtime.main import main

if __name__ == "__main__":
    code = main(sys.argv[1:])
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    # Everything is closed. Threads of libraries that linger are not waited for.
    os._exit(code)
