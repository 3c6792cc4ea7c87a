"""Kubernetes quantities of bytes: `512Mi`, `2G`, `1073741824`. Used by the job's API; pure."""

import re
from decimal import Decimal

__all__ = ["format_bytes", "parse_bytes"]

_UNITS = {
    "": 1,
    **{unit: 1000**power for power, unit in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
    **{unit: 1024**power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
}
_FORM = re.compile(r"^(\d+(?:\.\d+)?)([A-Za-z]*)$")


def parse_bytes(value: int | str) -> int:
    """A quantity -> bytes, rounded down. Raises ValueError naming the value and a right one."""
    match = _FORM.match(str(value).strip()) if type(value) in (int, str) else None
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"{value!r} is not a quantity of bytes: write one such as 512Mi or 2Gi (units: {_names()})")
    return int(Decimal(match[1]) * _UNITS[match[2]])


def format_bytes(value: int) -> str:
    """Bytes -> the shortest exact binary quantity."""
    for unit in ("Ei", "Pi", "Ti", "Gi", "Mi", "Ki"):
        if value and value % _UNITS[unit] == 0:
            return f"{value // _UNITS[unit]}{unit}"
    return str(value)


def _names() -> str:
    return ", ".join(unit for unit in _UNITS if unit)
