"""Writing to the cache takes idle time, and two percent of the rest."""

from lanefeed_sidecar.cache.allowance import MOST_SECONDS, Allowance


def test_a_busy_thread_writes_for_two_percent_of_its_time() -> None:
    allowance, written = Allowance(), 0.0
    for _ in range(10_000):
        allowance.worked(0.005)
        if allowance.open:
            allowance.spent(0.0008)
            written += 0.0008
    assert 0.019 < written / 50.0 < 0.021


def test_an_idle_thread_writes_all_that_it_decodes() -> None:
    allowance = Allowance()
    for _ in range(1000):
        allowance.idled(0.01)
        allowance.worked(0.005)
        assert allowance.open
        allowance.spent(0.0008)


def test_idle_time_is_not_saved_up_for_long() -> None:
    allowance = Allowance()
    allowance.idled(3600.0)
    assert allowance.seconds == MOST_SECONDS
