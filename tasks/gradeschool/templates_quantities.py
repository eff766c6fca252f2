"""Templates about counting, comparing, sharing and fractions."""

# Each wording stays on one line, to be read as the sentence it is.
# ruff: noqa: E501

from __future__ import annotations

from tasks.gradeschool.drawing import PERCENTS, Draw, Drawn, drawn, template


@template()
def find_more(d: Draw) -> Drawn:
    n, item, place = d.name(), d.item(), d.place()
    a, b = d.num(5, 99), d.num(3, 80)
    q = d.pick(
        f"{n} has {a} {item} at home and finds {b} more {item} at the {place}. How many {item} does {n} have now?",
        f"At the {place} {n} finds {b} {item}. Before that {n} had {a} {item}. How many {item} does {n} have now?",
    )
    return drawn(q, a + b, f"{n} has {a} + {b} = {a + b} {item}.")


@template()
def give_away(d: Draw) -> Drawn:
    n, m, k = d.names(3)
    item = d.item()
    b, c = d.num(3, 30), d.num(3, 30)
    t = b + c
    a = t + d.num(2, 40)
    q = d.pick(
        f"{n} has {a} {item}. {n} gives {b} {item} to {m} and {c} {item} to {k}. How many {item} are left?",
        f"{n} gives {b} {item} to {m} and {c} to {k}. At the start {n} had {a} {item}. How many {item} are left?",
    )
    return drawn(
        q,
        a - t,
        f"{n} gives away {b} + {c} = {t} {item}.",
        f"That leaves {a} - {t} = {a - t} {item}.",
    )


@template()
def more_than(d: Draw) -> Drawn:
    n, m = d.names(2)
    item = d.item()
    a, b = d.num(5, 60), d.num(3, 30)
    q = d.pick(
        f"{n} has {a} {item}. {m} has {b} more {item} than {n}. How many {item} do they have in all?",
        f"{m} has {b} more {item} than {n}. If {n} has {a} {item}, how many {item} do they have in all?",
    )
    c = a + b
    return drawn(q, a + c, f"{m} has {a} + {b} = {c} {item}.", f"Together {a} + {c} = {a + c} {item}.")


@template()
def fewer_than(d: Draw) -> Drawn:
    n, m = d.names(2)
    item = d.item()
    b = d.num(3, 30)
    c = d.num(3, 40)
    a = b + c
    q = d.pick(
        f"{n} has {a} {item}. {m} has {b} fewer {item} than {n}. How many {item} do they have in all?",
        f"{m} has {b} fewer {item} than {n}. If {n} has {a} {item}, how many {item} do they have in all?",
    )
    return drawn(q, a + c, f"{m} has {a} - {b} = {c} {item}.", f"Together {a} + {c} = {a + c} {item}.")


@template()
def times_as_many(d: Draw) -> Drawn:
    n, m = d.names(2)
    item = d.item()
    a, k = d.num(3, 25), d.num(2, 6)
    q = d.pick(
        f"{n} has {a} {item}. {m} has {k} times as many {item} as {n}. How many {item} do they have in all?",
        f"{m} has {k} times as many {item} as {n}. If {n} has {a} {item}, how many {item} do they have in all?",
    )
    b = k * a
    return drawn(q, a + b, f"{m} has {k} * {a} = {b} {item}.", f"Together {a} + {b} = {a + b} {item}.")


@template()
def three_children(d: Draw) -> Drawn:
    n, m, o = d.names(3)
    item = d.item()
    a, k = d.num(5, 20), d.num(2, 4)
    b = k * a
    f = d.num(2, min(b - 2, 20))
    c = b - f
    q = (
        f"{n} has {a} {item}. {m} has {k} times as many as {n}. {o} has {f} fewer than {m}. "
        f"How many {item} do {d.pick('the three', 'all of them')} have in all?"
    )
    s = a + b
    return drawn(
        q,
        s + c,
        f"{m} has {k} * {a} = {b} {item}.",
        f"{o} has {b} - {f} = {c} {item}.",
        f"Together {a} + {b} = {s}.",
        f"In all {s} + {c} = {s + c} {item}.",
    )


@template()
def boxes_and_loose(d: Draw) -> Drawn:
    n, item = d.name(), d.item()
    a, k, b = d.num(2, 9), d.num(3, 20), d.num(2, 30)
    q = d.pick(
        f"{n} has {a} boxes with {k} {item} in each box and {b} more {item} in a bag. How many {item} is that in all?",
        f"{n} has {b} {item} in a bag and {a} boxes with {k} {item} in each. How many {item} is that in all?",
    )
    t = a * k
    return drawn(q, t + b, f"The boxes hold {a} * {k} = {t} {item}.", f"Together {t} + {b} = {t + b} {item}.")


@template()
def share_equally(d: Draw) -> Drawn:
    n, item, place = d.name(), d.item(), d.place()
    k, each = d.num(2, 9), d.num(3, 30)
    a = k * each
    q = d.pick(
        f"{n} has {a} {item} and shares them equally among {k} friends at the {place}. How many does each one get?",
        f"At the {place} {k} friends of {n} share {a} {item} equally. How many {item} does each one get?",
    )
    return drawn(q, each, f"Each one gets {a} / {k} = {each} {item}.")


@template()
def pool_and_share(d: Draw) -> Drawn:
    n, m = d.names(2)
    item = d.item()
    k, each = d.num(2, 9), d.num(3, 15)
    t = k * each
    a = d.num(2, t - 2)
    b = t - a
    q = d.pick(
        f"{n} has {a} {item} and {m} has {b} {item}. They put all of them in {k} equal bags. How many are in each bag?",
        f"{n} and {m} put their {item} in {k} equal bags. {n} has {a} and {m} has {b}. How many are in each bag?",
    )
    return drawn(q, each, f"Together {a} + {b} = {t} {item}.", f"Each bag holds {t} / {k} = {each} {item}.")


@template()
def left_over(d: Draw) -> Drawn:
    n, item = d.name(), d.item()
    k = d.num(3, 9)
    full = d.num(2, 56 // k)
    rest = d.num(1, k - 1)
    m = full * k
    a = m + rest
    q = d.pick(
        f"{n} has {a} {item} and puts them in bags of {k}. {n} fills as many bags as possible. How many are left over?",
        f"{n} fills bags with {k} {item} each. There are {a} {item} to start with. How many {item} are left over?",
    )
    return drawn(
        q,
        rest,
        f"The {full} full bags hold {full} * {k} = {m} {item}.",
        f"Left over are {a} - {m} = {rest}.",
    )


@template()
def fraction_given(d: Draw) -> Drawn:
    n, m = d.names(2)
    item = d.item()
    word, by = d.pick(("half", 2), ("a third", 3), ("a quarter", 4))
    part = d.num(3, 25)
    a = part * by
    q = d.pick(
        f"{n} has {a} {item} and gives {word} of them to {m}. How many {item} does {n} have left after that?",
        f"{n} gives {word} of the {item} to {m}. At the start there were {a} {item}. How many {item} are left?",
    )
    return drawn(
        q,
        a - part,
        f"{n} gives away {a} / {by} = {part} {item}.",
        f"That leaves {a} - {part} = {a - part} {item}.",
    )


@template()
def several_parts(d: Draw) -> Drawn:
    n, item = d.name(), d.item()
    word, top, by = d.pick(("two thirds", 2, 3), ("two thirds", 2, 3), ("three quarters", 3, 4))
    color = d.pick("red", "blue", "green", "old", "new", "small")
    part = d.num(3, 25)
    a = part * by
    q = d.pick(
        f"{n} has {a} {item} in a box. In the box {word} of the {item} are {color}. How many {item} are {color}?",
        f"In a box {word} of the {item} are {color}. {n} counts {a} {item} in the box. How many {item} are {color}?",
    )
    name = "third" if by == 3 else "quarter"
    return drawn(
        q,
        top * part,
        f"One {name} is {a} / {by} = {part}.",
        f"So {top} * {part} = {top * part} {item} are {color}.",
    )


@template()
def percent_group(d: Draw) -> Drawn:
    n, place = d.name(), d.place()
    percent, by = d.pick(*PERCENTS)
    part = d.num(2, 20)
    a = part * by
    way = d.pick("walk", "run", "take the train")
    q = d.pick(
        f"In the club of {n} {percent}% of the {a} children {way} to the {place}. The others take the bus. "
        f"How many take the bus?",
        f"The club of {n} has {a} children. To get to the {place} {percent}% of them {way} and the others take the bus. "
        f"How many take the bus?",
    )
    return drawn(
        q,
        a - part,
        f"{percent}% of {a} is {a} / {by} = {part}.",
        f"The bus takes {a} - {part} = {a - part}.",
    )
