"""Servers that nobody here wrote, started on this machine and held against evalkit: the parts of test_servers.py."""
