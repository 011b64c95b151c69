"""Benchmarks: each compares Holdfast with an alternative, in the same run on the same data, and prints ratios."""
