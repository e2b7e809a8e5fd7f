"""The jar of the shim: the one in the package, or one that is built for the installed PySpark when it is asked for."""
