"""`make bench`: tokens/s of the engine, as ratios measured side by side in one process.

loop.py and hf.py are what it is compared with; measure.py runs ways in turn; page.py writes the table.
"""
