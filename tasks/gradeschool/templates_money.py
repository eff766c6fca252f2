"""Templates about prices, pay, savings and accounts."""

# Each wording stays on one line, to be read as the sentence it is.

from __future__ import annotations

from tasks.gradeschool.drawing import PERCENTS, Draw, Drawn, drawn, fmt, template


@template()
def total_cost(d: Draw) -> Drawn:
    n, item, place = d.name(), d.item(), d.place()
    a, p = d.num(2, 9), d.num(3, 25)
    q = d.pick(
        f"{n} buys {a} {item} at the {place}. Each of them costs ${p}. How many dollars does {n} pay?",
        f"At the {place} the {item} cost ${p} each. {n} buys {a} of them. How many dollars does {n} pay?",
    )
    t = a * p
    return drawn(q, t, f"The {item} cost {a} * {p} = ${t}.")


@template()
def change(d: Draw) -> Drawn:
    n, item = d.name(), d.item()
    a, p = d.num(2, 9), d.num(2, 10)
    c = a * p
    bill = d.pick(*[b for b in (20, 50, 100) if b > c])
    q = d.pick(
        f"{n} buys {a} {item} for ${p} each and pays with ${bill}. How many dollars does {n} get back?",
        f"{n} has ${bill} and buys {a} {item}. Each of them costs ${p}. How many dollars are left?",
    )
    return drawn(
        q,
        bill - c,
        f"The {item} cost {a} * {p} = ${c}.",
        f"That leaves {bill} - {c} = ${bill - c}.",
    )


@template()
def two_items(d: Draw) -> Drawn:
    n = d.name()
    i, j = d.items(2)
    a, p, b, r = d.num(2, 9), d.num(2, 9), d.num(2, 9), d.num(2, 9)
    q = d.pick(
        f"{n} buys {a} {i} for ${p} each and {b} {j} for ${r} each. How many dollars does {n} pay in all?",
        f"{n} sells {a} {i} at ${p} each and {b} {j} at ${r} each. How many dollars is that in all?",
    )
    x, y = a * p, b * r
    return drawn(
        q,
        x + y,
        f"The {i} cost {a} * {p} = ${x}.",
        f"The {j} cost {b} * {r} = ${y}.",
        f"Together {x} + {y} = ${x + y}.",
    )


@template()
def discount(d: Draw) -> Drawn:
    n, thing, place = d.name(), d.pick("coat", "lamp", "bag", "game", "bike", "chair"), d.place()
    percent, by = d.pick(*PERCENTS)
    off = d.num(5, 20)
    price = off * by
    q = d.pick(
        f"A {thing} costs ${price}. {n} gets {percent}% off at the {place}. How many dollars does {n} pay for it?",
        f"{n} sees a {thing} for ${price} at the {place}. Today it is {percent}% off. How many dollars is it now?",
    )
    left = price - off
    return drawn(
        q,
        left,
        f"{percent}% of {price} is {price} / {by} = ${off}.",
        f"That leaves {price} - {off} = ${left}.",
    )


@template()
def price_rise(d: Draw) -> Drawn:
    n, thing = d.name(), d.pick("coat", "lamp", "bag", "game", "bike", "chair")
    percent, by = d.pick(*PERCENTS)
    more = d.num(5, 20)
    price = more * by
    q = d.pick(
        f"{n} sells a {thing} for ${price}. Then the price goes up by {percent}%. How many dollars is it now?",
        f"Last week the {thing} of {n} cost ${price}. Now it costs {percent}% more. How many dollars is it now?",
    )
    new = price + more
    return drawn(
        q,
        new,
        f"{percent}% of {price} is {price} / {by} = ${more}.",
        f"It is now {price} + {more} = ${new}.",
    )


@template()
def weekly_savings(d: Draw) -> Drawn:
    n = d.name()
    w, a, b = d.num(2, 9), d.num(3, 15), d.num(10, 60)
    q = d.pick(
        f"{n} has ${b} and saves ${a} each week. How many dollars does {n} have after {w} weeks?",
        f"{n} saves ${a} each week for {w} weeks. At the start {n} had ${b}. How many dollars does {n} have now?",
    )
    s = w * a
    return drawn(q, s + b, f"In {w} weeks {n} saves {w} * {a} = ${s}.", f"{n} has {s} + {b} = ${s + b}.")


@template()
def wages_two_days(d: Draw) -> Drawn:
    n, place = d.name(), d.place()
    h, k, p = d.num(2, 5), d.num(2, 4), d.num(6, 20)
    q = d.pick(
        f"{n} works {h} hours on Monday and {k} hours on Friday at the {place}. "
        f"The pay is ${p} an hour. How many dollars does {n} earn?",
        f"The {place} pays {n} ${p} an hour. {n} works {h} hours on Monday and {k} hours on Friday. "
        f"How many dollars does {n} earn?",
    )
    t = h + k
    return drawn(q, t * p, f"{n} works {h} + {k} = {t} hours.", f"{n} earns {t} * {p} = ${t * p}.")


@template()
def wage_bonus(d: Draw) -> Drawn:
    n, place = d.name(), d.place()
    h, p, b = d.num(2, 9), d.num(6, 12), d.num(5, 40, 5)
    q = d.pick(
        f"{n} works {h} hours at the {place} for ${p} an hour and gets ${b} more in tips. How many dollars is that?",
        f"The {place} pays {n} ${p} an hour. {n} works {h} hours and gets ${b} in tips. How many dollars is that?",
    )
    w = h * p
    return drawn(q, w + b, f"{n} earns {h} * {p} = ${w}.", f"With tips that is {w} + {b} = ${w + b}.")


@template()
def wage_spent(d: Draw) -> Drawn:
    n, item = d.name(), d.item()
    h, p = d.num(3, 9), d.pick(8, 10, 12, 15, 20)
    w = h * p
    a, c = d.num(2, 5), d.num(2, 4)
    s = a * c
    q = d.pick(
        f"{n} works {h} hours for ${p} an hour. Then {n} buys {a} {item} for ${c} each. How many dollars are left?",
        f"{n} earns ${p} an hour for {h} hours and then buys {a} {item} at ${c} each. How many dollars are left?",
    )
    return drawn(
        q,
        w - s,
        f"{n} earns {h} * {p} = ${w}.",
        f"The {item} cost {a} * {c} = ${s}.",
        f"That leaves {w} - {s} = ${w - s}.",
    )


@template()
def savings_goal(d: Draw) -> Drawn:
    n, thing = d.name(), d.pick("coat", "lamp", "bag", "game", "bike", "chair")
    a, w, have = d.num(2, 10), d.num(2, 12), d.num(10, 60)
    need = a * w
    price = need + have
    q = d.pick(
        f"A {thing} costs ${price}. {n} has ${have} and saves ${a} each week. How many weeks does {n} need to save?",
        f"{n} wants a {thing} for ${price}. {n} has ${have} and saves ${a} a week. How many weeks will that take?",
    )
    return drawn(q, w, f"{n} needs {price} - {have} = ${need} more.", f"That takes {need} / {a} = {w} weeks.")


@template()
def shared_bill(d: Draw) -> Drawn:
    n, place = d.name(), d.place()
    k, each = d.num(2, 8), d.num(3, 20)
    total = k * each
    a = d.num(2, total - 2)
    b = total - a
    q = d.pick(
        f"At the {place} {n} and friends pay ${a} for food and ${b} for drinks. "
        f"The {k} of them share it equally. How many dollars does each one pay?",
        f"{n} is one of {k} friends at the {place}. Food costs ${a} and drinks cost ${b}. "
        f"They share it equally. How many dollars does each one pay?",
    )
    return drawn(q, each, f"Together {a} + {b} = ${total}.", f"Each one pays {total} / {k} = ${each}.")


@template()
def profit(d: Draw) -> Drawn:
    n, item = d.name(), d.item()
    a, p, gain = d.num(2, 9), d.num(2, 15), d.num(2, 9)
    s = p + gain
    q = d.pick(
        f"{n} buys {a} {item} for ${p} each and sells them for ${s} each. How many dollars does {n} gain?",
        f"{n} sells {a} {item} for ${s} each. {n} paid ${p} for each of them. How many dollars does {n} gain?",
    )
    return drawn(
        q,
        a * gain,
        f"{n} gains {s} - {p} = ${gain} on each.",
        f"In all {a} * {gain} = ${a * gain}.",
    )


@template()
def unit_price(d: Draw) -> Drawn:
    n, item, place = d.name(), d.item(), d.place()
    k, p = d.num(2, 9), d.num(2, 12)
    b = d.pick(*[x for x in range(2, 10) if x != k])
    q = d.pick(
        f"At the {place} {k} {item} cost ${k * p}. {n} buys {b} of them. How many dollars does {n} pay?",
        f"{n} wants {b} {item} from the {place}. There {k} {item} cost ${k * p}. How many dollars does {n} pay?",
    )
    return drawn(q, b * p, f"Each one costs {k * p} / {k} = ${p}.", f"{n} pays {b} * {p} = ${b * p}.")


@template()
def spending_compared(d: Draw) -> Drawn:
    n, m = d.names(2)
    place = d.place()
    a, b = d.num(5, 60), d.num(3, 30)
    q = d.pick(
        f"{n} spends ${a} at the {place}. {m} spends ${b} more than {n}. How many dollars do they spend in all?",
        f"At the {place} {m} spends ${b} more than {n}. {n} spends ${a}. How many dollars do they spend in all?",
    )
    c = a + b
    return drawn(q, a + c, f"{m} spends {a} + {b} = ${c}.", f"Together {a} + {c} = ${a + c}.")


@template()
def half_spent(d: Draw) -> Drawn:
    n, place = d.name(), d.place()
    word, by = d.pick(("half", 2), ("half", 2), ("a third", 3), ("a quarter", 4))
    part = d.num(6, 20)
    a = part * by
    rest = a - part
    b = d.num(2, min(rest - 1, 20))
    q = d.pick(
        f"{n} has ${a} and spends {word} of it at the {place}. Then {n} spends ${b} more. How many dollars are left?",
        f"At the {place} {n} spends {word} of ${a} on lunch and then ${b} on a bus. How many dollars are left?",
    )
    return drawn(
        q,
        rest - b,
        f"{n} first spends {a} / {by} = ${part}.",
        f"That leaves {a} - {part} = ${rest}.",
        f"In the end {rest} - {b} = ${rest - b} are left.",
    )


@template()
def percent_saved(d: Draw) -> Drawn:
    n = d.name()
    percent, by = d.pick(*PERCENTS)
    s, w = d.num(5, 20), d.num(2, 9)
    pay = s * by
    q = d.pick(
        f"{n} earns ${pay} each week and saves {percent}% of it. How many dollars does {n} save in {w} weeks?",
        f"Each week {n} saves {percent}% of the ${pay} pay. How many dollars does {n} have after {w} weeks?",
    )
    return drawn(
        q,
        w * s,
        f"{percent}% of {pay} is {pay} / {by} = ${s}.",
        f"In {w} weeks {n} saves {w} * {s} = ${w * s}.",
    )


@template()
def tickets_change(d: Draw) -> Drawn:
    n, place = d.name(), d.place()
    a, c = d.num(2, 4), d.num(2, 6)
    p, r = d.num(5, 10), d.num(2, 5)
    x, y = a * p, c * r
    q = d.pick(
        f"At the {place} {n} buys {a} tickets for ${p} each and {c} drinks for ${r} each. "
        f"{n} pays with $100. How many dollars does {n} get back?",
        f"{n} has $100. At the {place} {n} buys {a} tickets at ${p} each and {c} drinks at ${r} each. "
        f"How many dollars are left?",
    )
    t = x + y
    return drawn(
        q,
        100 - t,
        f"Tickets cost {a} * {p} = ${x}.",
        f"Drinks cost {c} * {r} = ${y}.",
        f"Together {x} + {y} = ${t}.",
        f"That leaves 100 - {t} = ${100 - t}.",
    )


@template()
def market_day(d: Draw) -> Drawn:
    n, m = d.names(2)
    i, j = d.items(2)
    while True:
        a, p, b, r = d.num(3, 9), d.num(2, 6), d.num(3, 9), d.num(2, 6)
        x, y, s = a * p, b * r, d.num(2, 10)
        if (x + y - s) % 2 == 0 and x + y - s > 0:
            break
    q = d.pick(
        f"{n} and {m} sell {a} {i} at ${p} each and {b} {j} at ${r} each. "
        f"They pay ${s} for a table and share the rest equally. How many dollars does each get?",
        f"{n} and {m} pay ${s} for a table. They sell {a} {i} at ${p} each and {b} {j} at ${r} each "
        f"and share the rest equally. How many dollars does each get?",
    )
    t = x + y
    return drawn(
        q,
        (t - s) // 2,
        f"The {i} bring {a} * {p} = ${x}.",
        f"The {j} bring {b} * {r} = ${y}.",
        f"Together {x} + {y} = ${t}.",
        f"That leaves {t} - {s} = ${t - s}.",
        f"Each gets {t - s} / 2 = ${(t - s) // 2}.",
    )


@template()
def big_purchase(d: Draw) -> Drawn:
    n, place = d.name(), d.place()
    i, j = d.pick(("sofa", "desk"), ("bed", "rug"), ("boat", "tent"), ("piano", "lamp"))
    a, b = d.num(1000, 4900, 100), d.num(50, 950, 50)
    q = d.pick(
        f"{n} buys a {i} for ${fmt(a)} and a {j} for ${b} near the {place}. How many dollars does {n} pay?",
        f"Near the {place} a {j} costs ${b} and a {i} costs ${fmt(a)}. {n} buys both. How many dollars does {n} pay?",
    )
    return drawn(q, a + b, f"Together {fmt(a)} + {b} = ${fmt(a + b)}.")


@template()
def rent(d: Draw) -> Drawn:
    n = d.name()
    a, b, c = d.num(2000, 6000, 100), d.num(300, 900, 100), d.num(100, 500, 50)
    q = d.pick(
        f"{n} earns ${fmt(a)} a month. The rent is ${b} and food costs ${c}. How many dollars are left each month?",
        f"Each month {n} pays ${b} for rent and ${c} for food. {n} earns ${fmt(a)}. How many dollars are left?",
    )
    x = a - b
    return drawn(
        q,
        x - c,
        f"After rent {n} has {fmt(a)} - {b} = ${fmt(x)}.",
        f"That leaves {fmt(x)} - {c} = ${fmt(x - c)}.",
    )


@template()
def monthly_pay(d: Draw) -> Drawn:
    n, place = d.name(), d.place()
    m, p = d.num(3, 9), d.num(400, 1000, 50)
    q = d.pick(
        f"The {place} pays {n} ${fmt(p)} each month. How many dollars does {n} earn there in {m} months?",
        f"{n} works {m} months at the {place} for ${fmt(p)} a month. How many dollars does {n} earn there?",
    )
    return drawn(q, m * p, f"{n} earns {m} * {fmt(p)} = ${fmt(m * p)}.")


@template()
def account_balance(d: Draw) -> Drawn:
    n, place = d.name(), d.place()
    b, c = d.num(10, 50), d.num(5, 40)
    t = b + c
    a = d.num(max(2, t - 40), t + 10)
    q = d.pick(
        f"{n} has ${a} in an account. {n} pays ${b} at the {place} and then ${c} for a bill. "
        f"What is the balance in dollars?",
        f"{n} pays ${b} at the {place} and ${c} for a bill from an account that had ${a}. "
        f"What is the balance in dollars?",
    )
    return drawn(q, a - t, f"{n} pays {b} + {c} = ${t}.", f"The balance is {a} - {t} = {a - t} dollars.")


@template()
def account_items(d: Draw) -> Drawn:
    n, item = d.name(), d.item()
    k, p = d.num(2, 9), d.num(3, 9)
    t = k * p
    a = d.num(max(2, t - 30), t + 8)
    q = d.pick(
        f"{n} has ${a} in an account and buys {k} {item} with it for ${p} each. What is the balance in dollars?",
        f"{n} buys {k} {item} at ${p} each from an account that had ${a}. What is the balance in dollars?",
    )
    return drawn(
        q,
        a - t,
        f"The {item} cost {k} * {p} = ${t}.",
        f"The balance is {a} - {t} = {a - t} dollars.",
    )
