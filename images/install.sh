#!/bin/sh
# Runs inside a build. `install.sh wheels`: what lies in /wheels into /opt/lanefeed, less what nobody runs there.
# `install.sh lanefeed EXTRA PACKAGES`: then Lanefeed's own wheel, a layer of its own that changes with every build. It
# fails where a lock file lacks what the EXTRA asks for, or where a module of the PACKAGES cannot be imported.
set -eu
pip="python3 -m pip --python /opt/lanefeed/bin/python --disable-pip-version-check"
case $1 in
  wheels)
    python3 -m venv --without-pip /opt/lanefeed
    $pip install -q --no-index --no-deps --no-cache-dir /wheels/*.whl
    # Tests, headers, static libraries, a second client of Kubernetes, Arrow's RPC. The compiled .pyc stay: the root
    # file system is read-only later.
    cd /opt/lanefeed/lib/python3*/site-packages
    find . -depth -type d \( -name tests -o -path '*/torch/include' -o -path '*/torch/test' \) -exec rm -rf {} +
    rm -rf pyarrow/include pyarrow/includes pyarrow/src pyarrow/*.pyx pyarrow/libarrow_flight* pyarrow/_flight* \
      pyarrow/libarrow_python_flight* numpy/_core/include kubernetes/aio
    find . -name '*.a' -delete ;;
  lanefeed)
    $pip install -q --no-index --no-deps --no-cache-dir /lanefeed/*.whl
    $pip install -q --no-index --no-cache-dir "lanefeed${2:+[$2]}"
    $pip check
    # Every module of the packages: none may need what only another image has.
    PYTHONDONTWRITEBYTECODE=1 /opt/lanefeed/bin/python - "$3" <<'PYTHON'
import importlib, pkgutil, sys
for name in sys.argv[1].split():
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(getattr(package, "__path__", ()), name + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
PYTHON
    ;;
esac
