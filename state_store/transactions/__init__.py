"""Transactions of a store, from the begin to the acknowledged commit."""
