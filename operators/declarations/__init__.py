"""What a program declares: states, timers, counters, times to live, processors."""
