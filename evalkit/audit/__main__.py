"""`python -m evalkit.audit`: run the simulations, write the page, exit 1 where a rule is off its promise."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from evalkit.audit.page import PAGE, rendered, write
from evalkit.audit.row import QUICK, Sizes
from evalkit.audit.rules import SEED
from evalkit.audit.simulate import Audit


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m evalkit.audit", description="Audit the rules by simulation.")
    parser.add_argument("--quick", action="store_true", help="few simulations; writes no page unless --out is given")
    parser.add_argument("--out", type=Path, help=f"the page to write (default: docs/{PAGE.name})")
    parser.add_argument("--seed", type=int, default=SEED)
    args = parser.parse_args(argv)
    audit = Audit(sizes=QUICK if args.quick else Sizes(), seed=args.seed)
    started = time.process_time()
    rows = []
    for row in audit.rows():
        rows.append(row)
        print(
            f"{'ok ' if row.ok else 'OFF'} {100 * row.rate:6.2f} %  {row.what:<8} {row.rule}: {row.setting}", flush=True
        )
    text = rendered(audit, rows, audit.sequential_examples())
    out = args.out or (None if args.quick else PAGE)
    if out:
        write(out, text)
        print(f"wrote {out}")
    bad = [row for row in rows if not row.ok]
    print(
        f"{len(rows) - len(bad)} of {len(rows)} rows within their promise, {time.process_time() - started:.0f} s of CPU"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
