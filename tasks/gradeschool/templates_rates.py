"""Templates about travel, time, shapes, scores and stock."""

# Each wording stays on one line, to be read as the sentence it is.
# ruff: noqa: E501

from __future__ import annotations

from tasks.gradeschool.drawing import Draw, Drawn, drawn, fmt, template


@template()
def distance(d: Draw) -> Drawn:
    n, place, how = d.name(), d.place(), d.pick("drives", "rides")
    h, s = d.num(2, 9), d.pick(*range(6, 21), 30, 40, 50, 60, 70, 80)
    q = d.pick(
        f"{n} {how} to the {place} for {h} hours at {s} miles per hour. How many miles is the way to the {place}?",
        f"{n} {how} at {s} miles per hour and gets to the {place} after {h} hours. How many miles is the way?",
    )
    return drawn(q, h * s, f"The way is {h} * {s} = {h * s} miles.")


@template()
def two_part_trip(d: Draw) -> Drawn:
    n, place = d.name(), d.place()
    h, s, k, r = d.num(2, 5), d.pick(10, 20, 30, 40, 50, 60), d.num(2, 4), d.num(3, 9)
    q = d.pick(
        f"{n} drives {h} hours at {s} miles per hour and then rides {k} hours at {r} miles per hour to the {place}. "
        f"How many miles is that?",
        f"To get to the {place} {n} drives {h} hours at {s} miles per hour and rides {k} hours at {r} miles per hour. "
        f"How many miles is that?",
    )
    x, y = h * s, k * r
    return drawn(
        q,
        x + y,
        f"The drive is {h} * {s} = {x} miles.",
        f"The ride is {k} * {r} = {y} miles.",
        f"Together {x} + {y} = {x + y} miles.",
    )


@template()
def travel_time(d: Draw) -> Drawn:
    n, place = d.name(), d.place()
    s, h = d.num(3, 10), d.num(2, 12)
    q = d.pick(
        f"The {place} is {s * h} miles away. {n} goes {s} miles each hour. How many hours does {n} need to get there?",
        f"{n} goes {s} miles each hour. The way to the {place} is {s * h} miles. How many hours does {n} need?",
    )
    return drawn(q, h, f"{n} needs {s * h} / {s} = {h} hours.")


@template()
def hours_to_minutes(d: Draw) -> Drawn:
    n, place = d.name(), d.place()
    h, m = d.num(2, 5), d.num(5, 55)
    what = d.pick("movie", "class", "walk", "trip", "game")
    q = d.pick(
        f"The {what} of {n} at the {place} takes {h} hours and {m} minutes. How many minutes is that in all?",
        f"At the {place} {n} waits {m} minutes. Then the {what} takes {h} hours. How many minutes is that in all?",
    )
    x = h * 60
    return drawn(q, x + m, f"{h} hours are {h} * 60 = {x} minutes.", f"Together {x} + {m} = {x + m} minutes.")


@template()
def practice_time(d: Draw) -> Drawn:
    n = d.name()
    what = d.pick("piano", "chess", "tennis", "dance", "guitar")
    a, b, k = d.pick(10, 15, 20, 25, 30), d.num(5, 30, 5), d.num(2, 9)
    q = d.pick(
        f"{n} practices {what} for {a} minutes each morning and {b} minutes each evening. "
        f"How many minutes is that in {k} days?",
        f"For {k} days {n} practices {what} for {a} minutes in the morning and {b} minutes in the evening. "
        f"How many minutes is that?",
    )
    t = a + b
    return drawn(
        q,
        k * t,
        f"Each day it is {a} + {b} = {t} minutes.",
        f"In {k} days it is {k} * {t} = {k * t} minutes.",
    )


@template()
def pages_left(d: Draw) -> Drawn:
    n, place = d.name(), d.place()
    r, k = d.num(4, 20), d.num(2, 9)
    x = r * k
    p = x + d.num(5, 50)
    q = d.pick(
        f"{n} has a book of {p} pages from the {place} and reads {r} pages a day for {k} days. How many pages are left?",
        f"For {k} days {n} reads {r} pages a day at the {place}. The book has {p} pages. How many pages are left?",
    )
    return drawn(q, p - x, f"{n} reads {k} * {r} = {x} pages.", f"That leaves {p} - {x} = {p - x} pages.")


@template()
def pages_days(d: Draw) -> Drawn:
    n, place = d.name(), d.place()
    r, k, done = d.num(3, 10), d.num(2, 15), d.num(5, 60)
    x = r * k
    p = x + done
    q = d.pick(
        f"A book from the {place} has {p} pages. {n} has read {done} of them and now reads {r} a day. "
        f"How many days will the rest take?",
        f"{n} has read {done} of {p} pages in a book from the {place} and now reads {r} a day. "
        f"How many days will the rest take?",
    )
    return drawn(q, k, f"That leaves {p} - {done} = {x} pages.", f"The rest takes {x} / {r} = {k} days.")


@template()
def average_of_three(d: Draw) -> Drawn:
    n, item = d.name(), d.item()
    mean = d.num(6, 30)
    a, b = mean + d.num(-5, 5), mean + d.num(-5, 5)
    c = 3 * mean - a - b
    if c < 1:
        a, b, c = mean, mean, mean
    q = d.pick(
        f"{n} finds {a} {item} on Monday, {b} on Tuesday and {c} on Friday. How many {item} a day is that on average?",
        f"On three days {n} sells {a}, {b} and {c} {item}. How many {item} does {n} sell a day on average?",
    )
    s, t = a + b, a + b + c
    return drawn(
        q,
        mean,
        f"First {a} + {b} = {s}.",
        f"In all {s} + {c} = {t} {item}.",
        f"The average is {t} / 3 = {mean}.",
    )


@template()
def perimeter(d: Draw) -> Drawn:
    n, what = d.name(), d.pick("garden", "field", "room", "yard")
    a, b = d.num(5, 45), d.num(3, 40)
    q = d.pick(
        f"The {what} of {n} is {a} meters long and {b} meters wide. How many meters is it all the way around?",
        f"{n} walks once around a {what} that is {a} meters long and {b} meters wide. How many meters is that?",
    )
    s = a + b
    return drawn(
        q,
        2 * s,
        f"Two sides are {a} + {b} = {s} meters.",
        f"All the way around is 2 * {s} = {2 * s} meters.",
    )


@template()
def area_left(d: Draw) -> Drawn:
    n, what = d.name(), d.pick("garden", "field", "room", "yard")
    a, b = d.num(5, 20), d.num(3, 9)
    x = a * b
    c = d.num(3, min(x - 2, 40))
    q = d.pick(
        f"The {what} of {n} is {a} meters long and {b} meters wide. "
        f"{n} paints {c} square meters. How many square meters are left?",
        f"{n} paints {c} square meters of a {what} that is {a} meters long and {b} meters wide. "
        f"How many square meters are left?",
    )
    return drawn(
        q,
        x - c,
        f"The {what} has {b} * {a} = {x} square meters.",
        f"That leaves {x} - {c} = {x - c}.",
    )


@template()
def fence_cost(d: Draw) -> Drawn:
    n, what, place = d.name(), d.pick("garden", "field", "yard"), d.place()
    a, b, p = d.num(2, 12), d.num(2, 8), d.num(2, 5)
    q = d.pick(
        f"The {what} of {n} at the {place} is {a} meters long and {b} meters wide. "
        f"A fence costs ${p} a meter. How many dollars is the fence around it?",
        f"A fence costs ${p} a meter. {n} puts it around a {what} at the {place} that is "
        f"{a} meters long and {b} meters wide. How many dollars is that?",
    )
    s = a + b
    t = 2 * s
    return drawn(
        q,
        p * t,
        f"Two sides are {a} + {b} = {s} meters.",
        f"The fence is 2 * {s} = {t} meters.",
        f"It costs {p} * {t} = ${p * t}.",
    )


@template()
def rows_of_seats(d: Draw) -> Drawn:
    n, place = d.name(), d.place()
    a, b = d.num(3, 9), d.num(4, 20)
    x = a * b
    c = d.num(3, min(x - 2, 50))
    q = d.pick(
        f"{n} puts {a} rows of {b} seats at the {place}. Then {c} people sit down. How many seats are still free?",
        f"At the {place} {n} counts {a} rows of {b} seats. {c} seats are taken. How many seats are still free?",
    )
    return drawn(q, x - c, f"There are {a} * {b} = {x} seats.", f"Still free are {x} - {c} = {x - c} seats.")


@template()
def egg_boxes(d: Draw) -> Drawn:
    n, m = d.names(2)
    k = d.pick(2, 3, 4, 5, 6)
    while True:
        a, b, c, e = d.num(3, 9), d.num(2, 6), d.num(2, 9), d.num(2, 8)
        x = a * b
        left = x + c - e
        if left > k and left % k == 0:
            break
    place = d.place()
    q = d.pick(
        f"{n} has {a} hens that lay {b} eggs each. {m} from the {place} brings {c} more eggs and {e} eggs break. "
        f"The rest go in boxes of {k}. How many boxes is that?",
        f"{n} gets {b} eggs from each of {a} hens and {c} eggs from {m}. At the {place} {e} eggs break. "
        f"The rest go in boxes of {k}. How many boxes is that?",
    )
    s = x + c
    return drawn(
        q,
        left // k,
        f"The hens lay {a} * {b} = {x} eggs.",
        f"Together {x} + {c} = {s} eggs.",
        f"That leaves {s} - {e} = {left} eggs.",
        f"They fill {left} / {k} = {left // k} boxes.",
    )


@template()
def bus_trip(d: Draw) -> Drawn:
    n, place = d.name(), d.place()
    a, b = d.num(2, 6), d.num(4, 12)
    x = a * b
    t = d.num(2, 9)
    s = x + t
    p = d.pick(2, 3, 4, 5)
    y = p * s
    r = d.num(10, min(50, y - 5), 5)
    q = d.pick(
        f"For a trip to the {place} {n} counts {a} groups of {b} children and {t} adults. Each one pays ${p}. "
        f"The bus costs ${r}. How many dollars are left?",
        f"{n} takes {a} groups of {b} children and {t} adults to the {place}. The bus costs ${r} and each one pays ${p}. "
        f"How many dollars are left?",
    )
    return drawn(
        q,
        y - r,
        f"There are {a} * {b} = {x} children.",
        f"Together {x} + {t} = {s} people.",
        f"They pay {p} * {s} = ${y}.",
        f"That leaves {y} - {r} = {y - r} dollars.",
    )


@template()
def ages(d: Draw) -> Drawn:
    n, m, o = d.names(3)
    a, k = d.num(4, 14), d.num(2, 5)
    b = k * a
    c = d.num(2, min(b - 2, 15))
    q = d.pick(
        f"{n} is {a} years old. {m} is {k} times as old as {n}. {o} is {c} years younger than {m}. How old is {o}?",
        f"{o} is {c} years younger than {m}. {m} is {k} times as old as {n}. {n} is {a} years old. How old is {o}?",
    )
    return drawn(q, b - c, f"{m} is {k} * {a} = {b} years old.", f"{o} is {b} - {c} = {b - c} years old.")


@template()
def water_tank(d: Draw) -> Drawn:
    n, place = d.name(), d.place()
    a, b = d.num(2, 9), d.num(3, 20)
    x = a * b
    c = d.num(2, min(x - 2, 30))
    q = d.pick(
        f"At the {place} {n} fills a tank with {b} liters a minute for {a} minutes. Then {c} liters run out. "
        f"How many liters are left?",
        f"A tank at the {place} gets {b} liters a minute. After {a} minutes {n} takes {c} liters out. "
        f"How many liters are left?",
    )
    return drawn(
        q,
        x - c,
        f"The tank gets {a} * {b} = {x} liters.",
        f"That leaves {x} - {c} = {x - c} liters.",
    )


@template()
def temperature(d: Draw) -> Drawn:
    n, place = d.name(), d.place()
    a, b, c = d.num(2, 15), d.num(5, 30), d.num(2, 9)
    q = d.pick(
        f"{n} reads {a} degrees at the {place}. By night it falls by {b} degrees and then by {c} more. "
        f"How many degrees is it then?",
        f"At noon it is {a} degrees at the {place}. {n} sees it fall by {b} degrees and then by {c} more. "
        f"How many degrees is it then?",
    )
    t = b + c
    return drawn(
        q,
        a - t,
        f"It falls by {b} + {c} = {t} degrees.",
        f"Then it is {a} - {t} = {a - t} degrees.",
    )


@template()
def quiz_score(d: Draw) -> Drawn:
    n, place = d.name(), d.place()
    r, p, w, m = d.num(2, 9), d.num(2, 5), d.num(2, 9), d.num(2, 5)
    q = d.pick(
        f"In a quiz at the {place} {n} wins {p} points for each of {r} right answers and loses {m} points "
        f"for each of {w} wrong answers. What is the score?",
        f"{n} has {r} right and {w} wrong answers in a quiz at the {place}. Right answers win {p} points and "
        f"wrong answers lose {m} points. What is the score?",
    )
    x, y = r * p, w * m
    return drawn(
        q,
        x - y,
        f"{n} wins {r} * {p} = {x} points.",
        f"{n} loses {w} * {m} = {y} points.",
        f"The score is {x} - {y} = {x - y}.",
    )


@template()
def big_stock(d: Draw) -> Drawn:
    n, item, place = d.name(), d.item(), d.place()
    a, b, c = d.num(1000, 5000, 100), d.num(100, 900, 50), d.num(100, 500, 50)
    q = d.pick(
        f"The {place} has {fmt(a)} {item}. It gets {b} more and {n} takes {c} of them away. How many {item} are left?",
        f"{n} takes {c} {item} away from the {place}. It had {fmt(a)} {item} and got {b} more. How many {item} are left?",
    )
    x = a + b
    return drawn(
        q,
        x - c,
        f"Together {fmt(a)} + {b} = {fmt(x)} {item}.",
        f"That leaves {fmt(x)} - {c} = {fmt(x - c)} {item}.",
    )


@template()
def factory(d: Draw) -> Drawn:
    n, item = d.name(), d.item()
    k, p = d.num(3, 9), d.num(150, 1000, 50)
    q = d.pick(
        f"The factory of {n} makes {fmt(p)} {item} each day. How many {item} does the factory make in {k} days?",
        f"For {k} days the factory of {n} makes {fmt(p)} {item} a day. How many {item} does it make in all?",
    )
    return drawn(q, k * p, f"The factory makes {k} * {fmt(p)} = {fmt(k * p)} {item}.")
