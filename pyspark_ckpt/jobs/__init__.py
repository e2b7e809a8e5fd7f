"""The tasks of offline work as jobs of a Spark session: of a classic one, and of a Spark Connect client."""
