"""The driver of ``deploy/kubernetes.yaml`` asks for executors as the manifest and the documents say."""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
import yaml

from integration.crash.driver import ROOT, environment
from integration.crash.processes import eventually
from integration.jvm import JAVA_OPTIONS
from integration.kubernetes.api_server import Pod, serving
from pyspark_ckpt.testing.crashes.processes import kill_marked

MANIFEST = ROOT / "deploy" / "kubernetes.yaml"
EXECUTORS = 2
NAMESPACE = "streaming"
DRIVER = "ckpt-driver-0"
_JOB = """
import pyspark_ckpt
from pyspark.sql import SparkSession
spark = pyspark_ckpt.configure(SparkSession.builder).getOrCreate()
input()
"""
_HERE = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.port": "0",
    "spark.driver.blockManager.port": "0",
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    "spark.ui.enabled": "false",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "0s",
}
"""Instead of what the manifest says of the driver's own machine."""

pytestmark = [pytest.mark.spark, pytest.mark.in_turn]


@pytest.fixture(scope="module")
def manifests() -> dict[str, dict[str, Any]]:
    """What is in the manifest, by kind."""
    return {each["kind"]: each for each in yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8"))}


@pytest.fixture(scope="module")
def pods(manifests: dict[str, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> list[Pod]:
    """The executors that a driver with the arguments of the manifest has asked for."""
    folder = tmp_path_factory.mktemp("driver")
    (folder / "temporary").mkdir()
    (folder / "job.py").write_text(_JOB, encoding="utf-8")
    (folder / "executor.yaml").write_text(manifests["ConfigMap"]["data"]["executor.yaml"], encoding="utf-8")
    mark = uuid.uuid4().hex
    own = environment(folder, mark)
    with serving() as (address, created), (folder / "driver.log").open("wb") as log:
        process = subprocess.Popen(
            [f"{own['SPARK_HOME']}/bin/spark-submit", *_list_arguments(manifests["Deployment"], address, folder)],
            cwd=folder,
            env=own,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
        )
        try:
            eventually(f"the executors, see {folder}", lambda: _is_done(process, created, folder), 0.2)
        finally:
            kill_marked(mark)
            process.wait()
            assert process.stdin is not None
            process.stdin.close()
    return created


def _is_done(process: subprocess.Popen[bytes], created: list[Pod], folder: Path) -> bool:
    assert process.poll() is None, (folder / "driver.log").read_text(encoding="utf-8")[-6000:]
    return len(created) >= EXECUTORS


def _list_arguments(deployment: dict[str, Any], address: str, folder: Path) -> list[str]:
    """Those of the manifest, with the places of this machine."""
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    first, *given, job = container["args"]
    assert (first, job) == ("spark-submit", "/opt/job.py")
    here = {
        "$(NAMESPACE)": NAMESPACE,
        "$(POD)": DRIVER,
        "https://kubernetes.default.svc": address,
        "/etc/ckpt/": f"{folder}/",
    }
    for name, value in here.items():
        assert any(name in each for each in given), name
        given = [each.replace(name, value) for each in given]
    return [*given, *(f"--conf={key}={value}" for key, value in _HERE.items()), str(folder / "job.py")]


def _container(pod: Pod) -> dict[str, Any]:
    (found,) = pod["spec"]["containers"]
    container: dict[str, Any] = found
    return container


def test_every_executor_has_the_image_and_the_memory_of_the_manifest(
    pods: list[Pod], manifests: dict[str, dict[str, Any]]
) -> None:
    (driver,) = manifests["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert len(pods) >= EXECUTORS
    for pod in pods:
        assert pod["metadata"]["namespace"] == NAMESPACE
        assert [each["name"] for each in pod["metadata"]["ownerReferences"]] == [DRIVER]
        assert _container(pod)["image"] == driver["image"]
        assert _container(pod)["resources"]["limits"]["memory"] == "3584Mi"


def test_local_copies_of_state_are_in_a_volume_that_goes_with_the_pod(pods: list[Pod]) -> None:
    for pod in pods:
        volumes = {each["name"]: each for each in pod["spec"]["volumes"]}
        mounts = {each["name"]: each["mountPath"] for each in _container(pod)["volumeMounts"]}
        variables = {each["name"]: each.get("value") for each in _container(pod)["env"]}
        (local,) = (name for name in volumes if name.startswith("spark-local-dir-"))
        assert volumes[local]["emptyDir"]["sizeLimit"] == "20Gi"
        assert variables["SPARK_LOCAL_DIRS"] == mounts[local] == "/local"


def test_what_the_template_says_stays(pods: list[Pod], manifests: dict[str, dict[str, Any]]) -> None:
    template = yaml.safe_load(manifests["ConfigMap"]["data"]["executor.yaml"])["spec"]
    (wanted,) = template.pop("containers")
    for pod in pods:
        found = _container(pod)
        assert found["envFrom"] == wanted["envFrom"]
        assert found["securityContext"].items() >= wanted["securityContext"].items()
        assert all(each in found["volumeMounts"] for each in wanted["volumeMounts"])
        assert all(each in pod["spec"]["volumes"] for each in template["volumes"])
        for name in template.keys() - {"volumes"}:
            assert pod["spec"][name] == template[name], name


def test_an_executor_has_as_much_time_to_end_as_the_driver(
    pods: list[Pod], manifests: dict[str, dict[str, Any]]
) -> None:
    driver = manifests["Deployment"]["spec"]["template"]["spec"]
    assert {pod["spec"]["terminationGracePeriodSeconds"] for pod in pods} == {driver["terminationGracePeriodSeconds"]}


def test_a_pod_has_the_form_of_kubernetes(pods: list[Pod], tmp_path: Path) -> None:
    tool = Path(sys.executable).parent / "kubernetes-validate"
    (tmp_path / "pod.yaml").write_text(yaml.safe_dump(pods[0]), encoding="utf-8")
    done = subprocess.run([tool, "--strict", tmp_path / "pod.yaml"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
