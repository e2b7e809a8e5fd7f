"""`with_states`: functions written for `applyInPandasWithState`, unchanged, on keyed state."""
