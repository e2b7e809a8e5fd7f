"""A page in the browser about checkpoints, for whoever is on call: read-only, on this machine, without Spark."""

from pyspark_ckpt.web.serving import WebPage, serve_web_page

__all__ = ["WebPage", "serve_web_page"]
