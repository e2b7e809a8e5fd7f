"""Paths and URLs that name a place: what each means, and which are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_ckpt.state_store.blobs import place_at
from pyspark_ckpt.state_store.blobs.s3.place import S3Place
from pyspark_ckpt.state_store.errors import InvalidInputError


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}", "file:///{}"])
def test_place_at_accepts_paths_and_file_uris(tmp_path: Path, form: str) -> None:
    place_at(form.format(tmp_path) + "/x").put("a", b"1")
    assert (tmp_path / "x" / "a").read_bytes() == b"1"


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}"])
def test_a_percent_sign_is_part_of_a_name_as_spark_has_it(tmp_path: Path, form: str) -> None:
    assert place_at(form.format(tmp_path) + "/10%3A00 %").url == f"{tmp_path}/10%3A00 %"


@pytest.mark.parametrize(
    "uri",
    [
        "s3:///x",
        "s3a://key:hunter2@bucket/x",
        "gcs://bucket/x",
        "webhdfs://host/x",
        "file://host/x",
        "relative/x",
        "file:relative",
    ],
)
def test_place_at_names_what_it_cannot_use(uri: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        place_at(uri)
    assert uri.partition(":")[0] in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("uri", ["s3://bucket/a%2520b", "s3://bucket/50%/ü", "s3://bucket"])
def test_the_url_of_a_place_in_s3_names_the_same_place(uri: str) -> None:
    place = place_at(uri)
    assert isinstance(place, S3Place)
    assert (place.url, place.key("x")) == (uri, f"{uri}/x".removeprefix("s3://bucket/"))


def test_a_path_of_s3a_is_the_name_itself() -> None:
    assert place_at("s3a://bucket/a%20b").url == "s3a://bucket/a%20b"
