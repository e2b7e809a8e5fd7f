"""Operators, their states, how rows and bytes are spread over partitions, and how long a restore takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark_ckpt.offline.descriptions.json_forms import Fields
from pyspark_ckpt.offline.descriptions.operators import name_operator
from pyspark_ckpt.offline.descriptions.states import count_by_groups, count_rows, describe_types
from pyspark_ckpt.state_store.checkpoints.inventory import OperatorVersion
from pyspark_ckpt.state_store.checkpoints.layout import Layout
from pyspark_ckpt.state_store.checkpoints.workplace import StoreVersion
from pyspark_ckpt.state_store.display import size_text
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.format.meta import StateMeta
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.savepoints.savepoint import SavepointInfo
from pyspark_ckpt.state_store.snapshots.lag import SnapshotLag
from pyspark_ckpt.state_store.snapshots.restore_forecast import RestoreForecast
from pyspark_ckpt.web.overview import describe_damage, describe_waiting
from pyspark_ckpt.web.recollection import Progress
from pyspark_ckpt.web.subjects import Facts, KnownVersion, Subject
from pyspark_ckpt.web.survey import StoreSurvey

MAX_GROUPS_BYTES = 256 << 20
"""The largest operator whose rows are read and counted by key groups."""


def tell_states(subject: Subject, facts: Facts, wait_s: float) -> Fields:
    """Return all operators with their states. Raises CkptError."""
    metas = subject.read_metas(facts, wait_s)
    if metas.value is None:
        return {"operators": [], "problems": [], "version": None, **describe_waiting(metas)}
    return {
        "operators": [_describe_operator(each, facts.saved) for each in metas.value.operators],
        "problems": describe_damage(metas.value.damaged),
        "version": metas.value.version,
        **describe_waiting(metas),
    }


def tell_partitions(subject: Subject, facts: Facts, wait_s: float) -> Fields:
    """Return rows, bytes and the predicted restore of each partition of each operator. Raises CkptError."""
    metas = subject.read_metas(facts, wait_s)
    if metas.value is None:
        return {"operators": [], "problems": [], "version": None, **describe_waiting(metas)}
    survey = subject.glance(facts, wait_s).value
    found = {} if survey is None else {each.identity: each for each in survey.stores}
    return {
        "operators": [_describe_spread(each, found, facts.saved) for each in metas.value.operators],
        "problems": describe_damage(metas.value.damaged),
        "version": metas.value.version,
        **describe_waiting(metas),
    }


def count_groups(facts: Facts, known: KnownVersion, operator: int, progress: Progress) -> Fields:
    """Return the rows of an operator by ranges of key groups: all of its rows are read.

    Raises InvalidInputError (no such operator, or one that has too much state to read), CkptError.
    """
    found = next((each for each in known.operators if each.operator.number == operator), None)
    if found is None or not facts.has_stores:
        raise InvalidInputError(f"{facts.checkpoint.place.url} has no stores of an operator {operator}.")
    for problem in (problem for identity, problem in known.damaged.items() if identity.operator == operator):
        raise problem
    if found.size_bytes > MAX_GROUPS_BYTES:
        command = facts.checkpoint.write_command("checkpoint", "inspect", "--key-groups")
        raise InvalidInputError(
            f"Operator {operator} has {size_text(found.size_bytes)} of state, and counting would read all of it.",
            hint=f"The page reads up to {size_text(MAX_GROUPS_BYTES)}; {command} reads any amount.",
        )
    stores = [each.identity for stores in found.stores.values() for each in stores]
    counted = count_by_groups(facts.checkpoint, stores, known.version, progress)
    return {"rows": counted, "operator": operator, "version": known.version}


def name_version(each: OperatorVersion) -> str:
    """Return an operator's name, with the uids of states of this package."""
    return name_operator(each.operator.name, each.uids, is_keyed=each.layout is Layout.KEY_GROUPS)


def _describe_operator(each: OperatorVersion, saved: SavepointInfo | None) -> Fields:
    by_name: dict[tuple[str, str], list[StateMeta]] = {}
    for store, versions in each.stores.items():
        for version in versions:
            for state in version.meta.states:
                by_name.setdefault((store, state.name), []).append(state)
    is_keyed = any("max_parallelism" in found[-1].descriptor.encoder for found in by_name.values())
    states = []
    for (store, name), found in by_name.items():
        keys, values = describe_types(found[-1])
        own = found[-1]
        ttl = own.descriptor.ttl or None
        states.append(
            {
                "store": store,
                "state": name,
                "uid": own.uid,
                "name": name if own.uid is None else name.removeprefix(f"{own.uid}/"),
                "has_keys": own.is_counted and (own.uid is not None or not is_keyed),
                "kind": str(own.descriptor.encoder.get("kind", "")) or "Spark's own",
                "rows": count_rows(found),
                "key": keys,
                "value": values,
                "ttl_ms": None if ttl is None or ttl.has_ended else ttl.duration_ms,
                "ttl_clock": None if ttl is None or ttl.has_ended else ttl.clock,
            }
        )
    return {
        "operator": each.operator.number,
        "operator_name": name_version(each),
        "layout": each.layout.value,
        "partitions": each.partitions if saved is None else saved.partitions,
        "rows": sum(state["rows"] or 0 for state in states),
        "size_bytes": each.size_bytes,
        "objects": each.objects,
        "states": sorted(states, key=lambda state: (state["store"], state["state"])),
    }


def _describe_spread(
    each: OperatorVersion, found: Mapping[Identity, StoreSurvey], saved: SavepointInfo | None
) -> Fields:
    by_partition: dict[int, list[StoreVersion]] = {}
    for versions in each.stores.values():
        for version in versions:
            by_partition.setdefault(version.identity.partition, []).append(version)
    partitions = [_describe_partition(number, stores, found) for number, stores in sorted(by_partition.items())]
    restores = [restore for one in partitions if (restore := one["restore_s"]) is not None]
    return {
        "operator": each.operator.number,
        "operator_name": name_version(each),
        "partitions": partitions,
        "is_whole": saved is not None and saved.kind == "canonical",
        "rows_skew": _find_skew([one["rows"] for one in partitions]),
        "bytes_skew": _find_skew([one["size_bytes"] for one in partitions]),
        "longest_restore_s": max(restores, default=None),
        "all_restores_s": sum(restores) if restores else None,
    }


def _describe_partition(number: int, stores: Sequence[StoreVersion], found: Mapping[Identity, StoreSurvey]) -> Fields:
    surveys = [found[each.identity] for each in stores if each.identity in found]
    size = sum(each.size_bytes for each in stores)
    return {
        "partition": number,
        "rows": sum(each.meta.rows for each in stores),
        "size_bytes": size,
        "objects": sum(each.objects for each in stores),
        "deltas": max((each.deltas for each in surveys), default=None),
        "restore_s": sum(_forecast(each, found.get(each.identity)) for each in stores) if surveys else None,
    }


def _forecast(store: StoreVersion, survey: StoreSurvey | None) -> float:
    """Return how long a restore of a store takes, by the defaults of the state server."""
    deltas, delta_bytes = (0, 0) if survey is None else (survey.deltas, survey.delta_bytes)
    forecast = RestoreForecast()
    snapshot_s = forecast.snapshot_s(max(0, store.size_bytes - delta_bytes))
    return snapshot_s + forecast.deltas_s(SnapshotLag(0, deltas, delta_bytes, 0.0))


def _find_skew(counts: Sequence[int]) -> float | None:
    """Return the ratio of the largest to the mean."""
    mean = sum(counts) / len(counts) if counts else 0
    return max(counts) / mean if mean else None
