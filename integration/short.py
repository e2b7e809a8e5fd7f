"""The short set of tests, some minutes of them, that every Spark has to pass; the rest runs on the newest Spark alone.

``python -m pytest $(python -m integration.short)`` runs it on the Spark that is installed.
"""

from __future__ import annotations

from pyspark_ckpt.pyspark_releases import find_release

SHORT = {
    "integration/adoption/test_handing_back.py": "3.5",
    "integration/adoption/test_native_operators.py": "3.5",
    "integration/operators/test_aggregation.py": "3.5",
    "integration/operators/test_backends.py::test_a_batch_finds_the_rows_of_the_batch_before_in_memory": "3.5",
    "integration/operators/test_backends.py::test_a_store_is_read_from_memory_alone_when_its_backend_is_memory": "3.5",
    "integration/operators/test_change_feed.py": "4.0",
    "integration/operators/test_connect_inputs.py": "3.5",
    "integration/operators/test_deduplication.py": "3.5",
    "integration/operators/test_file_sink.py": "3.5",
    "integration/operators/test_foreach_batch.py": "3.5",
    "integration/operators/test_group_functions.py": "3.5",
    "integration/operators/test_grouped_python.py": "3.5",
    "integration/operators/test_idle_silence.py": "3.5",
    "integration/operators/test_join.py": "3.5",
    "integration/operators/test_keyed.py": "3.5",
    "integration/operators/test_limit.py": "3.5",
    "integration/operators/test_one_task.py": "3.5",
    "integration/operators/test_reading_state.py": "4.0",
    "integration/operators/test_restart.py": "3.5",
    "integration/operators/test_session_windows.py": "3.5",
    "integration/operators/test_state_reader.py": "4.0",
    "integration/operators/test_stateful.py": "4.2",
    "integration/operators/test_timers.py": "3.5",
    "integration/operators/test_transform_with_state.py": "4.1",
    "integration/operators/test_vector_states.py": "3.5",
    "integration/crash/test_driver_kill.py"
    "::test_the_initial_state_is_there_once_when_the_driver_is_killed_in_the_first_batch": "3.5",
    "integration/running/test_old_checkpoint.py"
    "::test_a_start_is_refused_if_the_driver_died_before_it_recorded_the_move": "3.5",
    "integration/savepoints/test_going_back.py": "3.5",
    "integration/savepoints/test_rescale_keyed.py": "3.5",
    "integration/savepoints/test_rescale.py": "3.5",
    "integration/savepoints/test_running.py": "3.5",
    "integration/savepoints/test_sinks.py": "3.5",
    "integration/savepoints/test_skipping_sink.py": "3.5",
    "integration/savepoints/test_written_lists.py": "4.1",
    "integration/savepoints/test_written_state.py": "3.5",
    "integration/test_connect.py": "4.0",
    "integration/test_frozen.py": "3.5",
}
"""The tests, and the release of Spark from which on it has what they are about."""

PARTS = {
    "format 3": "4.1",  # of joins
    "format 4": "4.3",
    "a format that Spark replaces": "4.3",
    "several values a key": "4.3",
    "rows_of_a_join_are_those_of_sparks_reader[3]": "4.1",
    "rows_of_a_join_are_those_of_sparks_reader[4]": "4.3",
    "checkpoint_format_changes_between_runs": "4.3",
    "state_metadata_equals_sparks": "4.2",  # in checkpoint format 2
    "goes_on_from_a_savepoint_of_an_earlier_release": "4.3",  # which ran on 4.3 alone
    "a_processor_goes_on": "4.0",
    "executors_read_a_partition_each": "4.0",  # the data source
    "by_the_names_of_their_sources": "4.2",
    "named_sources": "4.2",
    "names_their_sources": "4.2",
    "equal_strings_of_different_bytes": "4.0",  # collations
    "of_spark[_mixed": "4.0",  # VARIANT
    "state_without_a_schema": "4.0",  # Spark 3.5 writes one for joins in format 1, too
}
"""The same for single tests, by a part of their names."""

IN_TURN = (
    "integration/operators/test_aggregation.py",
    "integration/operators/test_change_feed.py",
    "integration/operators/test_connect_inputs.py",
    "integration/operators/test_foreach_batch.py",
    "integration/operators/test_group_functions.py",
    "integration/operators/test_idle_silence.py",
    "integration/operators/test_keyed.py",
    "integration/operators/test_one_task.py",
    "integration/operators/test_reading_state.py",
    "integration/operators/test_stateful.py",
    "integration/operators/test_vector_states.py",
    "integration/savepoints/test_running.py",
    "integration/test_frozen.py",
)
"""Those of which an older Spark gets a part each time: see ``integration.turns``."""


def has(release: str) -> bool:
    """Whether the Spark that is installed is this release or newer."""
    return _numbers(find_release()) >= _numbers(release)


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")[:2]))


if __name__ == "__main__":
    print(*(name for name, release in SHORT.items() if has(release)), sep="\n")
