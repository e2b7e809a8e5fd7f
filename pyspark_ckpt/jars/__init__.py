"""The jar of the shim: from the package, or built on demand for the installed PySpark."""
