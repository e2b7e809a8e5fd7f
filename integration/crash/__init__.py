"""Kill servers, executors, workers and drivers at every step, and compare what is left with a run without faults."""
