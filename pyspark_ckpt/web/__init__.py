"""A page in the browser about checkpoints, for whoever is on call: read-only, on this machine, without Spark."""

from pyspark_ckpt.web.serving import WebPage, serve

__all__ = ["WebPage", "serve"]
