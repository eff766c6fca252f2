"""The project's own engine behind an OpenAI-style HTTP server: `evalkit serve`.

One thread owns the LLM and runs its ticks (worker.py); HTTP is served beside it (app.py), and counted (stats.py).
"""
