"""Engines outside this process: how each is started, when it is ready, and what its counters mean."""
