"""Numbers in text, by one written rule. Standard library only.

What is a number, and why:

- It has a digit. A lone comma, dot or dollar sign is none (C04).
- Thousands separators belong to it where they stand between groups of three digits and are all the same: comma,
  NBSP, thin and figure spaces, LaTeX's `{,}` and `\\,` (C03). A plain space does so only in an answer's own field:
  in running text "5 100 dollar bills" are two numbers. Commas in any other place (`1,2`, `3,5`) leave it open what
  is meant, so that run of digits is no number.
- Currency, percent signs and units are taken off and noted. `18%` is 18, not 0.18: the tasks ask for "what percent".
- The Unicode minus, the en dash and the full-width hyphen are signs where nothing stands before them to subtract from.
- Full-width digits, commas, dots and signs (U+FF10 and its neighbours) are read as the ASCII ones they look like.
- `1/2` is the fraction 0.5, `1 1/2` is 1.5, `1e3` is 1000. A fraction is never equal to a whole gold answer: an
  answer left as `4/2` was not worked out.
- A clock time, a ratio, a date, a version, an ordinal and digits inside a word (`3:00`, `1/2/2024`, `1.2.3`, `2nd`,
  `x2`) are no numbers; nor is anything with more than 100 digits.
- Values are exact (Fraction): 18 = 18.0 = 18.00, and 0.1 + 0.2 = 0.3.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

MAX_DIGITS = 100
MINUS = "-\u2212\u2013\ufe63\uff0d"
_SPACES = "\u00a0\u2007\u2008\u2009\u200a\u202f"
_WIDE = {0xFEE0 + ord(c): c for c in "0123456789,.$%/"} | {0xFFE1: "£", 0xFFE5: "¥"}  # one for one: places stay
_CURRENCY = r"(?:US\$|USD|EUR|GBP|Rs\.?|\\?\$|[€£¥₹])"


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A number found in a text: its exact value, the raw span it was read from, and what was taken off.

    `kind` is integer, decimal, fraction or exponent; `notes` are among sign, currency, separators, percent, unit,
    full width.
    """

    value: Fraction
    raw: str
    start: int
    end: int
    kind: str
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The value as a plain decimal where it has one, else as numerator/denominator."""
        return plain(self.value)


def plain(value: Fraction) -> str:
    """`1000`, `0.5`, `1/3`: the shortest exact form."""
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    if rest != 1 or value.denominator > 10**MAX_DIGITS:
        return f"{value.numerator}/{value.denominator}"
    if value.denominator == 1:
        return str(value.numerator)
    places = max(1, value.denominator.bit_length())  # enough: a denominator 2^a 5^b has at most max(a, b) places
    whole = abs(value.numerator) * 10**places // value.denominator
    digits = str(whole).rjust(places + 1, "0")
    return ("-" if value < 0 else "") + f"{digits[:-places]}.{digits[-places:]}".rstrip("0").rstrip(".")


def equal(found: Number, gold: Number) -> bool:
    """Exact equality of values; a fraction never equals a whole number (see the module's rule)."""
    return found.value == gold.value and not (found.kind == "fraction" and gold.value.denominator == 1)


def _pattern(*, field: bool) -> re.Pattern[str]:
    separator = rf"(?:\{{,\}}|,\\!|\\,|[,{_SPACES}{' ' if field else ''}])"
    lead = rf"(?<![\w)\]])(?<![\w)\]]\ )[{MINUS}]\ ?" if field else rf"(?<![\w)\]])[{MINUS}]"
    return re.compile(
        rf"""
        (?<![A-Za-z0-9_^])(?<![0-9][.,])
        (?P<sign>{lead})?
        (?P<currency>{_CURRENCY}\ ?)?
        (?P<inner>(?<=[$€£¥₹D])[{MINUS}])?
        (?:
          (?P<junk>[0-9]+(?::[0-9]+)+ | [0-9]+(?P<by>[/-])[0-9]+(?P=by)[0-9]+ | [0-9]+(?:\.[0-9]+){{2,}}
             | [0-9]+(?:st|nd|rd|th)\b)
        | \\d?frac\{{(?P<top>[0-9]+)\}}\{{(?P<bottom>[0-9]+)\}}
        | (?:(?P<whole>[0-9]+)\ )?(?P<over>[0-9]+)\ ?/\ ?(?P<under>[0-9]+)(?![0-9.,]*[0-9])
        | (?P<grouped>[0-9]{{1,3}}(?P<separator>{separator})[0-9]{{3}}(?:(?P=separator)[0-9]{{3}})*)
             (?![0-9]|(?P=separator)[0-9])(?P<places>\.[0-9]+)?
        | (?P<malformed>[0-9]+(?:,[0-9]+)+)
        | (?P<simple>[0-9]+(?:\.[0-9]+)?|\.[0-9]+)
        )
        (?P<exponent>[eE][+-]?[0-9]{{1,3}}(?![\w.]*[0-9])(?!\w))?
        (?P<percent>\ ?\\?%|\ percent\b)?
        (?P<after>\ ?[€£¥₹])?
        (?P<unit>(?=\ ?[A-Za-z°]))?
        """,
        re.VERBOSE,
    )


_RUNNING, _FIELD = _pattern(field=False), _pattern(field=True)


def scan(text: str, *, field: bool = False) -> Iterator[Number | None]:
    """What looks like a number, from left to right; None for what looks like one and is none.

    `field` says that the text is an answer's own field, where a plain space may separate thousands.
    """
    shown = text if text.isascii() else text.translate(_WIDE)
    for found in (_FIELD if field else _RUNNING).finditer(shown):
        yield _number(found, text[found.start() : found.end()])


def _number(found: re.Match[str], raw: str) -> Number | None:
    """The number of a match; `raw` is the span as the text has it."""
    part = found.groupdict()
    if part["junk"] or part["malformed"] or len(found[0]) > MAX_DIGITS:
        return None
    over, under = part["over"] or part["top"], part["under"] or part["bottom"]
    if over is not None:
        if int(under) == 0:
            return None
        value, kind = Fraction(int(over), int(under)) + int(part["whole"] or 0), "fraction"
    else:
        digits = part["simple"] or re.sub("[^0-9]", "", part["grouped"]) + (part["places"] or "")
        value, kind = Fraction(Decimal(digits)), "decimal" if "." in digits else "integer"
    if part["exponent"]:
        power = int(part["exponent"][1:])
        if abs(power) > MAX_DIGITS:
            return None
        value, kind = value * Fraction(10) ** power, "exponent"
    sign = part["sign"] or part["inner"]
    noted = {
        "sign": sign is not None and not sign.startswith("-"),
        "currency": part["currency"] or part["after"],
        "separators": part["separator"],
        "percent": part["percent"],
        "unit": part["unit"] is not None and not part["percent"],
        "full width": raw != found[0],
    }
    return Number(value=-value if sign else value, raw=raw, start=found.start(), end=found.end(), kind=kind,
                  notes=tuple(name for name, there in noted.items() if there))  # fmt: skip


def last_number(text: str) -> Number | None:
    """The last number of a running text."""
    last = None
    for number in scan(text):
        last = number or last
    return last


def whole_text(text: str) -> Number | None:
    """The number that a text is, from its first character to its last but for blanks; None if it is anything else."""
    stripped = text.strip()
    found = list(scan(stripped, field=True))
    if len(found) != 1 or found[0] is None:
        return None
    return found[0] if found[0].raw == stripped.removesuffix(".") else None
