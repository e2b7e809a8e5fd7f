"""Watch queries: metrics for Prometheus and OpenTelemetry, a web page, and advice on the number of partitions."""

from pyspark_ckpt.metrics.exporter import MetricsExport, export_metrics
from pyspark_ckpt.offline.advice.report import Advice
from pyspark_ckpt.running.advising import advise
from pyspark_ckpt.web.serving import WebPage, serve_web_page

__all__ = ["Advice", "MetricsExport", "WebPage", "advise", "export_metrics", "serve_web_page"]
