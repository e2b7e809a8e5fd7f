"""What Spark makes of the manifest in ``deploy/``, without a cluster: the pods that it asks for."""
