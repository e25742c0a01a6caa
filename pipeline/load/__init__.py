"""Drives loadtests/ against a booted or running server and turns its records into figures."""
