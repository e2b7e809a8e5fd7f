"""The documentation as a site: which files are its pages, and where a link leads on it."""
