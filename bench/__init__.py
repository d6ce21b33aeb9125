"""Measurements, run by hand: each prints its own parameters with its figures."""
