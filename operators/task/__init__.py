"""One task of a keyed operator: it takes rows, fires timers, yields output rows and stages writes for the commit."""
