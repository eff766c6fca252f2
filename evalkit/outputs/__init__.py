"""Verdicts in the forms that other programs read: JSON, JUnit XML, GitHub's summary, annotations and benchmark files,
lm-eval's.

Every writer is `write_*(verdicts, runs, path)`, with the runs that the verdicts are on. Each writes its file whole or
not at all. Check texts and model names come from outside: every form escapes them by its own rules.
"""

from evalkit.outputs.annotations import annotation_lines
from evalkit.outputs.benchmark import write_benchmark
from evalkit.outputs.document import document_text, write_json
from evalkit.outputs.junit import junit_text, write_junit
from evalkit.outputs.lm_eval_files import write_lm_eval
from evalkit.outputs.summary import append_summary, summary_text, write_summary

__all__ = [
    "annotation_lines", "append_summary", "document_text", "junit_text", "summary_text", "write_benchmark",
    "write_json", "write_junit", "write_lm_eval", "write_summary",
]  # fmt: skip
