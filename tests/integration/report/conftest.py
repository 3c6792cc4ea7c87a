"""The report service of a cluster, once a test."""

from collections.abc import Iterator

import pytest

from support.report_bed import Bed


@pytest.fixture
def bed() -> Iterator[Bed]:
    """A running service without jobs."""
    made = Bed()
    made.up()
    yield made
    made.down()
