"""The faults that other tests rely on are what their table says."""

from __future__ import annotations

import pytest

from pyspark_ckpt.state_store.errors import ConflictError, StorageError
from tests.faults.faulty_place import LATE_S, FaultyPlace, Link, Network, Weather
from tests.labs.memory_place import MemoryPlace, MemoryService


@pytest.fixture
def network() -> Network:
    return Network("faults")


@pytest.fixture
def inner(network: Network) -> MemoryPlace:
    return MemoryService(network.clock).place("memory:/place")


@pytest.fixture
def place(network: Network, inner: MemoryPlace) -> FaultyPlace:
    return FaultyPlace(inner, Link(network, "A"))


@pytest.mark.parametrize(
    ("fault", "outcome", "at_once", "later"),
    [
        ("slow_down", "not_applied", False, False),
        ("lost_before", "unknown", False, False),
        ("lost_after", "unknown", True, True),
        ("late", "unknown", False, True),
        ("twice", "", True, True),
        ("doubled", "", True, True),
        ("slow", "", True, True),
    ],
)
def test_a_write_happens_and_is_told_when_it_meets_a_fault(
    fault: str, outcome: str, network: Network, inner: MemoryPlace, place: FaultyPlace, *, at_once: bool, later: bool
) -> None:
    network.weather = Weather(1.0, (fault,))
    if outcome:
        with pytest.raises(StorageError) as caught:
            place.put_if_absent("a", b"x")
        assert caught.value.outcome == outcome
    else:
        assert place.put_if_absent("a", b"x") is (fault != "doubled")
    assert bool(inner.list()) is at_once
    network.advance(LATE_S)
    assert bool(inner.list()) is later


def test_a_copy_of_a_write_arrives_when_the_object_was_deleted_meanwhile(
    network: Network, inner: MemoryPlace, place: FaultyPlace
) -> None:
    network.weather = Weather(1.0, ("twice",))
    place.put_if_absent("a", b"x")
    inner.delete("a")
    network.advance(LATE_S)
    assert inner.get("a") == b"x"


def test_a_new_object_conflicts_with_itself_when_it_is_doubled(
    network: Network, inner: MemoryPlace, place: FaultyPlace
) -> None:
    network.weather = Weather(1.0, ("doubled",))
    with pytest.raises(ConflictError), place.create("a") as sink:
        sink.write(b"x")
    assert inner.get("a") == b"x"


def test_a_body_is_another_when_it_is_damaged(network: Network, inner: MemoryPlace, place: FaultyPlace) -> None:
    inner.put("a", b"0123456789")
    network.weather = Weather(1.0, ("corrupted",))
    assert len(place.get("a")) == 10
    assert place.get("a") != b"0123456789"
    network.weather = Weather(1.0, ("truncated",))
    assert len(place.get("a")) < 10


def test_a_deleted_object_is_listed_for_a_while_when_it_is_a_ghost(network: Network, place: FaultyPlace) -> None:
    place.put("sst/a", b"x")
    network.weather = Weather(1.0, ("ghost",))
    place.delete("sst/a")
    assert [blob.name for blob in place.list("sst")] == ["sst/a"]
    network.advance(LATE_S)
    assert place.list("sst") == []


def test_faults_are_the_same_when_the_seed_is(network: Network) -> None:
    def met(seed: object) -> list[str]:
        other = Network(seed)
        other.weather = Weather(0.5, ("slow_down", "lost_before", "late"))
        place = FaultyPlace(MemoryService(other.clock).place("memory:/place"), Link(other, "A"))
        for number in range(20):
            try:
                place.put(f"a{number}", b"x")
            except StorageError as problem:
                other.tell(problem.message)
        return other.events

    assert met(7) == met(7) != met(8)
    assert network.events == []
