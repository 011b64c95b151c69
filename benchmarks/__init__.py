"""Benchmarks: each compares with its peer in the same run on the same data and prints ratios."""
