"""The image, the compose file and the manifest: right as far as can be seen without an engine and a cluster."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import pyspark_ckpt as ckpt
from tests.pages.documents import ROOT

DEPLOY = ROOT / "deploy"
TOOLS = Path(sys.executable).parent
PREFIX = "spark.sql.streaming.stateStore.ckpt."


def _run(*command: object, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(each) for each in command], cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False
    )


def _call_tool(name: str, *arguments: object) -> str:
    tool = TOOLS / name
    if not tool.exists():
        pytest.skip(f"NOT RUN: {name} is not installed here; the extra dev has it, where its makers build it.")
    done = _run(tool, *arguments)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def _manifests() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8")))


def _services() -> dict[str, dict[str, Any]]:
    services: dict[str, dict[str, Any]] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))[
        "services"
    ]
    return services


def _find(kind: str) -> dict[str, Any]:
    (found,) = (each for each in _manifests() if each["kind"] == kind)
    return found


def _executor() -> dict[str, Any]:
    template: dict[str, Any] = yaml.safe_load(_find("ConfigMap")["data"]["executor.yaml"])
    return template


def test_the_dockerfile_has_no_complaint_of_hadolint() -> None:
    _call_tool("hadolint", DEPLOY / "Dockerfile")


def test_the_compose_file_has_the_form_of_compose_files() -> None:
    _call_tool("check-jsonschema", "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml")


def test_the_manifests_have_the_form_of_kubernetes(tmp_path: Path) -> None:
    _call_tool("kubernetes-validate", "--strict", DEPLOY / "kubernetes.yaml")
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "executor"}, **_executor()}
    pod["spec"]["containers"][0]["image"] = "any"  # Spark sets it
    (tmp_path / "pod.yaml").write_text(yaml.safe_dump(pod), encoding="utf-8")
    _call_tool("kubernetes-validate", "--strict", tmp_path / "pod.yaml")


def test_what_the_image_copies_is_sent_to_the_engine_and_exists() -> None:
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    copied = [name for line in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE) for name in line.split()]
    sent = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    assert sorted(sent) == sorted(["*", *(f"!{name}" for name in copied)])
    assert all((ROOT / name).exists() for name in copied if "*" not in name)
    assert "pyspark" not in re.sub(r"pyspark[_-]ckpt|PYSPARK\w*|PySpark", "", text)  # Spark brings it


@pytest.mark.parametrize("wheels", [("a-1-py3-none-any.whl", "a-2-py3-none-any.whl"), ("a-1-py3-none-any.whl",)])
def test_one_wheel_is_installed_and_more_are_refused_with_what_to_do(wheels: tuple[str, ...], tmp_path: Path) -> None:
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", "")
    (command,) = re.findall(r"^RUN (set --.*)$", text, re.MULTILINE)
    checks = command.partition("&& pip install")[0]
    for name in wheels:
        (tmp_path / name).touch()
    done = _run("sh", "-c", checks.replace("/wheels", str(tmp_path)) + '&& echo "$1"')
    if len(wheels) == 1:
        assert (done.returncode, done.stdout) == (0, f"{tmp_path / wheels[0]}\n")
    else:
        assert (done.returncode, done.stdout) == (1, "")
        assert "dist/ has 2 wheels" in done.stderr
        assert "make wheel" in done.stderr


def test_options_of_the_store_exist() -> None:
    known = set(json.loads((ROOT / "state_store/options.json").read_text(encoding="utf-8"))["options"])
    text = "".join((DEPLOY / name).read_text(encoding="utf-8") for name in ("compose.yaml", "kubernetes.yaml"))
    named = set(re.findall(re.escape(PREFIX) + r"(\w+)=", text))
    assert named
    assert named <= known


def test_a_container_has_no_right_that_it_does_not_need() -> None:
    for pod in (_find("Deployment")["spec"]["template"]["spec"], _executor()["spec"]):
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["runAsUser"] == 185
        (container,) = pod["containers"]
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"]
        assert not security["allowPrivilegeEscalation"]
        assert security["capabilities"] == {"drop": ["ALL"]}
        mounted = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
        assert set(mounted) == {each["name"] for each in pod["volumes"]}
        assert {"/tmp", "/opt/spark/work-dir"} <= set(mounted.values())  # Spark writes there


def test_an_executor_has_the_memory_that_sizing_asks_for() -> None:
    arguments = dict(
        each.removeprefix("--conf=").split("=", 1) for each in _driver()["args"] if each.startswith("--conf=")
    )
    cores, limit = int(arguments["spark.executor.cores"]), _mib(arguments[f"{PREFIX}memoryLimit"])
    needed = limit / 4 + 100 + 150 + cores * (70 + 2 * 128) + 300
    assert _mib(arguments["spark.executor.memoryOverhead"]) >= needed
    assert _mib(arguments["spark.executor.memory"]) >= 1024 + limit * 3 / 4


def test_one_driver_runs_at_a_time() -> None:
    spec = _find("Deployment")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


def test_nothing_listens_outside_of_the_machine() -> None:
    services = _services()
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_kafka_keeps_its_data_in_the_volume() -> None:
    """Else a container that is made anew has lost them, and the offsets in the checkpoint lead nowhere."""
    kafka = _services()["kafka"]
    assert [each.partition(":")[2] for each in kafka["volumes"]] == [kafka["environment"]["KAFKA_LOG_DIRS"]]


def test_the_job_starts_when_its_topic_and_its_bucket_exist() -> None:
    """A query on a topic that is missing fails."""
    needed = _services()["job"]["depends_on"]
    assert {name: needed[name]["condition"] for name in ("topic", "bucket")} == dict.fromkeys(
        ("topic", "bucket"), "service_completed_successfully"
    )


def test_all_that_build_the_image_give_it_the_same_name() -> None:
    built = re.findall(r"docker build .* -t (\S+) ", (DEPLOY / "Dockerfile").read_text(encoding="utf-8"))
    assert built == ["pyspark-ckpt"]
    assert {each["image"] for each in _services().values() if "build" in each} == {"pyspark-ckpt"}


def test_images_are_pinned() -> None:
    services = _services()
    images = {service["image"] for service in services.values()} - {"pyspark-ckpt"}  # it is built here
    images |= set(
        re.findall(r"^ARG \w+_IMAGE=(.+)$", (DEPLOY / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    )
    images.add(_driver()["image"])
    assert all(re.fullmatch(r"[\w./-]+:v?\d[\w.-]*", image) for image in images), images


def test_the_job_adds_up_payments() -> None:
    namespace: dict[str, Any] = {"__name__": "job"}
    exec((DEPLOY / "job.py").read_text(encoding="utf-8"), namespace)  # noqa: S102 - as a script would run
    stream = ckpt.testing.keyed("user string, amount double", by="user", uid="spending")
    with stream.process(namespace["Spending"](), namespace["OUTPUT"]) as harness:
        assert harness.run([("ada", 5.0), ("ada", 7.5)]) == [("ada", 2, 12.5)]
        assert harness.run([("ada", 1.0)]) == [("ada", 3, 13.5)]
        harness.advance_processing_time("31 days")
        assert harness.run([("ada", 1.0)]) == [("ada", 1, 1.0)]


@pytest.fixture(scope="module")
def docker() -> Iterator[str]:
    """A Docker engine that answers, and the image."""
    found = shutil.which("docker")
    if found is None or _run(found, "info").returncode:
        pytest.skip("NOT RUN: no Docker engine answers, so the image was not built, and the compose file did not run.")
    if not list((ROOT / "dist").glob("*.whl")):
        pytest.skip("NOT RUN: there is no wheel in dist for the image: `make wheel` makes it.")
    built = _run(found, "build", "-f", DEPLOY / "Dockerfile", "-t", "pyspark-ckpt", ".", timeout_s=1200)
    assert built.returncode == 0, built.stderr[-4000:]
    yield found
    _run(found, "compose", "-f", DEPLOY / "compose.yaml", "down", "--volumes")


@pytest.mark.slow
def test_the_image_has_all_that_a_session_needs(docker: str) -> None:
    program = (
        "import sys, pyspark, pyspark_ckpt.session as s; print(sys.version_info[:2], pyspark.__file__, s.jar_path())"
    )
    done = _run(docker, "run", "--rm", "pyspark-ckpt", "python3", "-c", program)
    assert done.returncode == 0, done.stderr
    assert (
        "/opt/spark/"
        in _run(docker, "run", "--rm", "pyspark-ckpt", "python3", "-c", "import pyspark; print(pyspark)").stdout
    )
    assert _run(docker, "run", "--rm", "pyspark-ckpt", "java", "-version").returncode == 0


@pytest.mark.slow
def test_the_services_start_and_state_arrives(docker: str) -> None:
    compose = (docker, "compose", "-f", DEPLOY / "compose.yaml")
    started = _run(
        *compose, "up", "--detach", "--wait", "--wait-timeout", "300", "kafka", "s3", "payments", timeout_s=600
    )
    assert started.returncode == 0, started.stderr
    assert _run(*compose, "up", "--detach", "job", timeout_s=300).returncode == 0
    count = ("pyspark-ckpt", "state", "count", "s3://state/checkpoint", "--uid", "spending", "--format", "csv")
    for _ in range(60):
        done = _run(*compose, "exec", "-T", "job", *count)
        if done.returncode == 0 and int(done.stdout) > 0:
            return
        _run("sleep", 3)
    pytest.fail(_run(*compose, "logs", "job").stdout[-6000:])


def _driver() -> dict[str, Any]:
    (container,) = _find("Deployment")["spec"]["template"]["spec"]["containers"]
    found: dict[str, Any] = container
    return found


def _mib(text: str) -> int:
    return int(text[:-1]) * {"m": 1, "g": 1024}[text[-1]]
