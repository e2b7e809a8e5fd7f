"""Spark's standalone cluster and S3 or HDFS, each machine in its namespace, and drivers on two of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyspark

import pyspark_ckpt
from integration.crash.processes import eventually
from integration.jvm import JAVA_OPTIONS
from integration.partitions import hdfs
from integration.partitions.network import Machine, Network, joined
from tests.services.s3_server import CREDENTIALS, GATEWAY, S3Service

ROOT = Path(__file__).parents[2]
MACHINES = ("driver", "standby", "one", "two", "store", "names")
"""``store`` has the master of Spark, and the S3 service or the data node; ``names`` has the name node."""
WORKERS = ("one", "two")
DRIVERS = ("driver", "standby")
MASTER_PORT = 7077
STORE_PORT = 7480
BUCKET = "partitions"
QUICK_S = 10
"""After so long without a word, a machine is given up: by default, Spark waits for two minutes."""
CONFS = {
    "spark.cores.max": "2",
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    "spark.executor.extraJavaOptions": JAVA_OPTIONS,
    "spark.executor.memory": "512m",
    "spark.executor.heartbeatInterval": "2s",
    "spark.network.timeout": f"{QUICK_S}s",
    "spark.network.timeoutInterval": f"{QUICK_S}s",
    "spark.rpc.askTimeout": f"{QUICK_S}s",
    "spark.rpc.lookupTimeout": f"{QUICK_S}s",
    "spark.sql.shuffle.partitions": "2",
    "spark.task.maxFailures": "8",
    "spark.ui.enabled": "false",
    "spark.hadoop.fs.s3a.connection.timeout": "5s",
    "spark.hadoop.fs.s3a.connection.establish.timeout": "5s",
    "spark.hadoop.fs.s3a.attempts.maximum": "2",
    "spark.hadoop.fs.s3a.retry.limit": "3",
    "spark.hadoop.ipc.client.connect.timeout": "3000",
    "spark.hadoop.ipc.client.connect.max.retries.on.timeouts": "2",
    "spark.hadoop.ipc.client.rpc-timeout.ms": "10000",
    "spark.hadoop.dfs.client.socket-timeout": "10000",
}


@dataclass
class Cluster:
    """What runs. ``url``: where checkpoints may be. ``jars``, ``confs``: what Spark needs to reach it."""

    network: Network
    folder: Path
    environment: Mapping[str, str]
    url: str
    jars: Sequence[str]
    confs: Mapping[str, str]

    def start_driver(self, machine: str, query: Path, number: int) -> subprocess.Popen[bytes]:
        """Start the query that has the folder ``query`` on a machine; it ends with 0 when it has read all."""
        here = self.network.machines[machine]
        jars = [pyspark_ckpt.session.jar_path(), *self.jars]
        confs = {
            **CONFS,
            "spark.master": f"spark://{self.network.machines['store'].address}:{MASTER_PORT}",
            "spark.driver.host": here.address,
            "spark.driver.bindAddress": here.address,
            "spark.jars": ",".join(jars),
            "spark.driver.extraClassPath": ":".join(jars),
            **self.confs,
        }
        settings = {
            "confs": confs,
            "options": {"place_timeout": "20s"},
            "lines": str(query / "lines"),
            "complete": str(query / "complete"),
            "checkpoint": f"{self.url}/{query.name}",
            "sink": str(query / "sink"),
        }
        command = [sys.executable, "-m", "integration.partitions.query", json.dumps(settings)]
        with (query / f"driver-{number}-{machine}.log").open("wb") as log:
            return subprocess.Popen(
                here.command(*command), cwd=ROOT, env=self._environment_of(here), stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def _environment_of(self, machine: Machine) -> dict[str, str]:
        return {**self.environment, "SPARK_LOCAL_IP": machine.address}


@contextmanager
def running(folder: Path, place: str) -> Iterator[Cluster]:
    """Start everything but a driver, with a ``place`` for checkpoints: "s3" or "hdfs". Raises NoNetworkError."""
    environment = {
        **os.environ, **CREDENTIALS, "SPARK_HOME": str(Path(pyspark.__file__).parent), "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable, "AWS_EC2_METADATA_DISABLED": "true",
        "SPARK_DAEMON_JAVA_OPTS": f"{JAVA_OPTIONS} -Dspark.worker.timeout={QUICK_S}",
    }  # fmt: skip
    with joined(MACHINES) as network, ExitStack() as stack:
        store = network.machines["store"]
        if place == "s3":
            service = _start_s3(stack, store, folder, environment)
            settings = {f"spark.hadoop.{name}": value for name, value in {**service.s3a, **service.s3a_keys}.items()}
            jars = list(map(str, sorted((ROOT / ".tools" / "s3a").glob("*.jar"))))
            cluster = Cluster(network, folder, environment, f"s3a://{BUCKET}", jars, settings)
        else:
            url = _start_hdfs(stack, network, folder, environment)
            cluster = Cluster(network, folder, environment, url, [], {})
        deploy = f"{environment['SPARK_HOME']}/bin/spark-class"
        master = [deploy, "org.apache.spark.deploy.master.Master", "--host", store.address, "--port", str(MASTER_PORT)]
        _start(stack, store, [*master, "--webui-port", "8080"], folder / "master.log", cluster._environment_of(store))
        url = f"spark://{store.address}:{MASTER_PORT}"
        for name in WORKERS:
            machine = network.machines[name]
            worker = [deploy, "org.apache.spark.deploy.worker.Worker", "--host", machine.address, "--cores", "1"]
            own = ["--memory", "1g", "--work-dir", str(folder / f"work-{name}"), "--webui-port", "8081", url]
            _start(stack, machine, [*worker, *own], folder / f"{name}.log", cluster._environment_of(machine))
        eventually("both workers", partial(_has_workers, store.address))
        yield cluster


def _start_s3(stack: ExitStack, store: Machine, folder: Path, environment: Mapping[str, str]) -> S3Service:
    objects = folder / "objects"
    objects.mkdir()
    keys = {
        "ROOT_ACCESS_KEY": CREDENTIALS["AWS_ACCESS_KEY_ID"],
        "ROOT_SECRET_KEY": CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
    }
    gateway = [str(GATEWAY), "--port", f"{store.address}:{STORE_PORT}", "posix", str(objects)]
    _start(stack, store, gateway, folder / "store.log", {**environment, **keys})
    service = S3Service(f"http://{store.address}:{STORE_PORT}", BUCKET)
    os.environ.update(CREDENTIALS)
    eventually("the S3 service", partial(_makes_bucket, service))
    return service


def _start_hdfs(stack: ExitStack, network: Network, folder: Path, environment: Mapping[str, str]) -> str:
    """Start a name node and a data node; return the URL of the file system."""
    machines = {"name": network.machines["names"], "data": network.machines["store"]}
    commands = hdfs.node_commands(folder, {role: machine.address for role, machine in machines.items()})
    for role, command in commands.items():
        _start(stack, machines[role], command, folder / f"{role}.log", environment)
    url = hdfs.url_of(machines["name"].address)
    eventually("HDFS", partial(hdfs.takes_files, url))
    return url


def _start(stack: ExitStack, machine: Machine, command: list[str], log: Path, environment: Mapping[str, str]) -> None:
    sink = stack.enter_context(log.open("wb"))
    process = subprocess.Popen(
        machine.command(*command), env=environment, stdout=sink, stderr=sink, start_new_session=True
    )
    stack.callback(end, process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all that it has started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        process.wait()


def _makes_bucket(service: S3Service) -> bool:
    try:
        service.client.create_bucket(Bucket=service.bucket)
    except Exception:  # noqa: BLE001 - it does not listen yet
        time.sleep(0.2)
        return False
    return True


def _has_workers(master: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{master}:8080/json/", timeout=2) as answer:
            found = json.load(answer)
    except OSError:
        return False
    return bool(sum(worker["state"] == "ALIVE" for worker in found["workers"]) == len(WORKERS))
