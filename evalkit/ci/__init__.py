"""Continuous integration as code: which jobs an event starts and why, and ATOM's accuracy catalogue."""
