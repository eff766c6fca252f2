"""The gate: judge(run, baseline, golden, references, spec) -> Verdict: pure, no file access, no clock.

Each check has three outcomes. `pass` and `fail` are both shown by a one-sided test at alpha, in opposite
directions; what neither shows is `inconclusive`, with the amount of data that would tell. The verdict
passes only if every check passes, so its chance to pass a run that lies on one margin is at most alpha,
however many checks there are (intersection-union). Hard conditions (a lost sample, a NaN, a forced run,
a draft that does nothing) need no test: they fail.
"""

from evalkit.gate.common import combine
from evalkit.gate.judge_run import judge
from evalkit.gate.limits import GateSpec
from evalkit.gate.line import verdict_line

__all__ = ["GateSpec", "combine", "judge", "verdict_line"]
