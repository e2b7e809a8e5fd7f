"""Programs written for Spark's transformWithState, on keyed state: their handle, their states, their calls."""
