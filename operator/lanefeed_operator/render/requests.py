"""What a pod asks of its node, added up as the scheduler does: native sidecars count for as long as the pod lives.

Called by `group`: a gang that reserves less than its pods ask for is admitted and then does not fit.
"""

import math
import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

from lanefeed_operator.api.quantity import format_bytes
from lanefeed_operator.render.errors import RenderError

__all__ = ["Amounts", "amount", "pod_requests", "spell"]

#: Resource -> how much of it.
Amounts = dict[str, Fraction]

_QUANTITY = re.compile(r"^([+-]?\d+(?:\.\d*)?|[+-]?\.\d+)(?:[eE]([+-]?\d{1,3})|([A-Za-z]{1,2}))?$")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def amount(value: Any) -> Fraction:
    """A Kubernetes quantity. Raises ValueError."""
    match = _QUANTITY.match(str(value).strip())
    if match is None or (match[3] and match[3] not in _DECIMAL and match[3] not in _BINARY):
        raise ValueError(f"{value!r} is not a quantity: write 500m, 2, 1.5 or 4Gi")
    number = Fraction(match[1])
    if match[2]:
        return number * Fraction(10) ** int(match[2])
    suffix = match[3] or ""
    if suffix in _BINARY:
        return number * 1024 ** (_BINARY.index(suffix) + 1)
    return number * Fraction(10) ** _DECIMAL.get(suffix, 0)


def pod_requests(pod: Mapping[str, Any]) -> Amounts:
    """Requests of a pod's spec: the larger of what it runs with, and of what any of its init containers needs."""
    beside: Amounts = {}
    most: Amounts = {}
    for container in pod.get("initContainers") or ():
        own = _requests(container)
        if container.get("restartPolicy") == "Always":
            beside = _sum([beside, own])
            most = _max(most, beside)
        else:
            most = _max(most, _sum([beside, own]))
    runs = _sum([beside, *(_requests(container) for container in pod.get("containers") or ())])
    overhead = _amounts(pod.get("overhead") or {}, "spec.template.spec.overhead")
    return _sum([_max(most, runs), overhead])


def spell(amounts: Amounts, times: int = 1) -> dict[str, str]:
    """As quantities, `times` over; never less than what is meant."""
    return {name: _spell(name, value * times) for name, value in sorted(amounts.items()) if value}


def _spell(name: str, value: Fraction) -> str:
    if value.denominator != 1 and name == "cpu":
        return f"{math.ceil(value * 1000)}m"
    whole = math.ceil(value)
    return format_bytes(whole) if name in ("memory", "ephemeral-storage") else str(whole)


def _requests(container: Mapping[str, Any]) -> Amounts:
    """A limit without a request is its own request."""
    resources = container.get("resources") or {}
    path = f"spec.template.spec.containers[{container.get('name', '')}].resources"
    return _amounts({**(resources.get("limits") or {}), **(resources.get("requests") or {})}, path)


def _amounts(values: Mapping[str, Any], path: str) -> Amounts:
    try:
        return {name: amount(value) for name, value in values.items()}
    except ValueError as error:
        raise RenderError(path, str(error)) from None


def _sum(parts: Iterable[Amounts]) -> Amounts:
    found: Amounts = {}
    for part in parts:
        for name, value in part.items():
            found[name] = found.get(name, Fraction(0)) + value
    return found


def _max(one: Amounts, other: Amounts) -> Amounts:
    return {name: max(one.get(name, Fraction(0)), other.get(name, Fraction(0))) for name in {**one, **other}}
