"""The faults that the crash kit chooses, without Spark."""

from __future__ import annotations

from pyspark_ckpt.state_store.failpoints import file_name
from pyspark_ckpt.testing.crashes.faults import POINTS, Faults


def test_each_fail_point_that_has_fired_is_a_fault_and_the_others_are_armed_again() -> None:
    faults = Faults(seed=1, kinds=[*POINTS], count=5, seconds=1.0)
    points = faults.points.split(",")
    assert len(points) == 5
    faults.note_fired(file_name(point) for point in points[1:4])
    assert set(faults.done) == set(points[1:4])
    assert set(faults.points.split(",")) == set(points) - set(points[1:4])
