"""Two queries over topics of Kafka become one, which goes on with the state and the offsets of both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pyspark_ckpt as ckpt
from integration.crash.driver import LOCAL, Driver
from integration.kafka.service import KafkaService, session_jars
from integration.short import has

pytestmark = [pytest.mark.spark, pytest.mark.kill]


@pytest.mark.in_turn
def test_two_queries_over_topics_become_one(kafka: KafkaService, tmp_path: Path) -> None:
    conf = {"spark.jars": session_jars()}
    with (
        kafka.topic() as views,
        kafka.topic() as users,
        Driver(tmp_path, LOCAL, conf, program="integration.kafka.composed_program") as driver,
    ):
        topics = {"views": views, "users": users}
        for are_named in [False, True] if has("4.2") else [False]:
            folder = tmp_path / f"{are_named}"
            before = {name: len(topic.records) for name, topic in topics.items()}
            views.produce(14, 7)
            users.produce(6, 3)

            def run(
                checkpoint: str, *names: str, folder: Path = folder, are_named: bool = are_named
            ) -> list[list[Any]]:
                found: list[list[Any]] = driver.order(
                    "run",
                    topics={name: topics[name].name for name in names},
                    checkpoint=str(folder / checkpoint),
                    servers=kafka.servers,
                    are_named=are_named,
                )
                return found

            first = run("one", "views")
            shown = run("two", "users")
            sources = ("of_views", "of_users") if are_named else (0, 0)
            ckpt.savepoint(folder / "two", folder / "saved")
            for names in (("views", "users"), ("users", "views")):
                parts: dict[str, tuple[Path, str | int, str | int]] = {
                    "views": (folder / "one", "views", sources[0]),
                    "users": (folder / "saved", 0, sources[1]),
                }
                taken = [parts[name] for name in names]
                target = folder / " and ".join(names)
                ckpt.writing.compose_savepoint(
                    target,
                    [(where, operator) for where, operator, _ in taken],
                    sources=[(where, source) for where, _, source in taken],
                )
                ckpt.restore(target, folder / f"{target.name} now")
                assert run(f"{target.name} now", *names) == []
            views.produce(7, 7)
            users.produce(8, 8)
            count = (before["views"] + 21) // 7
            expected = [[f"user-{n}", count] for n in range(7)]
            known = {user for user, _ in shown}
            expected += [[f"user-{n}", -1] for n in range(8) if f"user-{n}" not in known]
            assert first == [[f"user-{n}", count - 1] for n in range(7)]
            assert known
            for names in (("views", "users"), ("users", "views")):
                assert run(f"{' and '.join(names)} now", *names) == sorted(expected)
