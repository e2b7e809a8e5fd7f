"""The job of deploy/ runs on a real Kafka and a real S3 with the settings that its compose file gives it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyspark
import pytest
import yaml
from confluent_kafka import Producer

import pyspark_ckpt as ckpt
from integration.kafka.service import KafkaService
from pyspark_ckpt.state_store.errors import CkptError
from tests.pages.documents import ROOT
from tests.services.s3_server import S3Service

JOB = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text(encoding="utf-8"))["services"]["job"]
LONG_S = 180
SPARK_HOME = str(Path(pyspark.__file__).parent)


@pytest.mark.in_turn
@pytest.mark.spark
def test_the_job_of_the_compose_file_keeps_what_users_have_spent(
    kafka: KafkaService, s3: S3Service, tmp_path: Path
) -> None:
    jars = [jar for folder in ("s3a", "kafka/connector") for jar in (ROOT / ".tools" / folder).glob("*.jar")]
    if not any(jar.name.startswith("hadoop-aws") for jar in jars):
        pytest.skip("NOT RUN: needs Hadoop's S3A, which `make .tools/s3a/.ready` fetches where there is Maven.")
    folder = s3.new_folder()
    with kafka.topic() as topic:
        producer = Producer({"bootstrap.servers": topic.servers})
        for amount in range(30):
            producer.produce(topic.name, json.dumps({"user": f"user {amount % 3}", "amount": amount + 0.5}))
        producer.produce(topic.name, "no payment")
        assert producer.flush(60) == 0
        producer.close()
        environment = {"KAFKA": topic.servers, "TOPIC": topic.name, "CHECKPOINT": folder.replace("s3:", "s3a:", 1)}
        log = tmp_path / "log"
        with log.open("w", encoding="utf-8") as output:
            job = subprocess.Popen(
                _command(jars, s3, tmp_path),
                env={
                    **os.environ,
                    **environment,
                    "AWS_ENDPOINT_URL_S3": s3.endpoint,
                    "SPARK_HOME": SPARK_HOME,
                    "PYSPARK_PYTHON": sys.executable,
                },
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            found = _wait_for_state(folder, s3, job)
        except AssertionError:
            print(log.read_text(encoding="utf-8")[-6000:])
            raise
        finally:
            job.terminate()
            job.wait(60)
    assert found == {f"user {n}": (10, sum(range(n, 30, 3)) + 5.0) for n in range(3)}


def _command(jars: list[Path], s3: S3Service, folder: Path) -> list[str]:
    """The command of the compose file, with the addresses of this test."""
    given = [
        each.replace("http://s3:7070", s3.endpoint)
        .replace("=us-east-1", f"={s3.s3a['fs.s3a.endpoint.region']}")
        .replace("=/local", f"={folder}/local")
        .replace("/opt/job.py", str(ROOT / "deploy/job.py"))
        for each in JOB["command"][1:]
    ]
    brought = ["--conf", f"spark.jars={','.join(map(str, jars))}", "--conf", "spark.ui.enabled=false"]
    return [str(Path(sys.executable).parent / JOB["command"][0]), *brought, *given]


def _wait_for_state(folder: str, s3: S3Service, job: subprocess.Popen[bytes]) -> dict[str, Any]:
    until = time.monotonic() + LONG_S
    while time.monotonic() < until:
        assert job.poll() is None, "the job has ended"
        try:
            with ckpt.reading.open_state(folder, uid="spending", state="total", options=s3.options) as state:
                found = {user: state.get(user) for user in ("user 0", "user 1", "user 2")}
        except CkptError:  # nothing is committed yet
            found = {}
        if found and all(found.values()) and sum(each.payments for each in found.values()) == 30:
            return {user: tuple(total) for user, total in found.items()}
        time.sleep(1)
    raise AssertionError("the state did not come")
