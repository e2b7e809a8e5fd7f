"""Functions written for `applyInPandasWithState`: run unchanged on keyed state, or given more states."""
