"""Layouts: where the entries of a store stand among its bytes, and what stands beside them."""
