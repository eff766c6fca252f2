"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  /** An element with a class and text. Whatever a model wrote goes through here: as text, never as markup. */
  const el = (tag, cls, ...parts) => {
    const made = document.createElement(tag);
    if (cls) made.className = cls;
    for (const part of parts) if (part !== null && part !== undefined) made.append(part);
    return made;
  };

  // --- tables that sort
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      if (head.tagName !== "TH") return;
      const button = el("button", "", ...head.childNodes);
      button.type = "button";
      head.append(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") !== "descending";
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const key = (row) => row.cells[column].dataset.sort ?? "";
        const rows = [...table.tBodies[0].rows].sort((a, b) => {
          const x = key(a), y = key(b);
          if (x === "" || y === "") return (x === "") - (y === "");
          const order = isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y;
          return down ? -order : order;
        });
        table.tBodies[0].append(...rows);
      });
    });
  }

  // --- what scrolls can be scrolled by keyboard; what does not is no stop on the way
  const names = new Map();
  const distinct = (name) => {
    names.set(name, (names.get(name) ?? 0) + 1);
    return names.get(name) > 1 ? `${name} (${names.get(name)})` : name;
  };
  const sized = new ResizeObserver((seen) => {
    for (const { target } of seen) {
      if (target.scrollWidth > target.clientWidth + 1 || target.scrollHeight > target.clientHeight + 1) {
        target.tabIndex = 0;
        target.setAttribute("role", "region");
        target.setAttribute("aria-label", target.dataset.called);
      } else for (const name of ["tabindex", "role", "aria-label"]) target.removeAttribute(name);
    }
  });
  for (const box of document.querySelectorAll(".scroll")) {
    const of = box.closest("[data-of]")?.dataset.of;
    box.dataset.called = distinct(of ? `${box.dataset.name}, ${of}` : box.dataset.name);
    sized.observe(box);
  }

  // --- paper: what a page of one run folds away is printed, and folded again
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("main details:not(.numbers, .long, .each, .each *)")].filter((d) => !d.open);
    for (const d of opened) d.open = true;
  });
  addEventListener("afterprint", () => { for (const d of opened) d.open = false; });

  // --- samples: unpacked when someone comes to them
  const blocks = [...document.querySelectorAll("script.block")];
  if (!blocks.length) return;
  const unpack = async (element) => {
    const bytes = Uint8Array.from(atob(element.textContent.trim()), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return JSON.parse(await new Response(stream).text());
  };
  let questions;
  const loaded = new Map();
  const load = (run) => {
    if (!loaded.has(run)) {
      questions ??= unpack($("questions"));
      loaded.set(run, (async () => {
        const asked = await questions, data = await unpack(block(run));
        for (const r of data.rows) [r.q, r.g, r.k] = asked[r.i];
        data.byDoc = new Map(data.rows.map((r) => [r.d, r]));
        data.byQuestion = new Map(data.rows.map((r) => [r.i, r]));
        for (const r of data.rows) r.find = [`#${r.d}`, r.q, r.t, r.g, r.e, ...(r.x || []).map((x) => x[1])].join("\n").toLowerCase();
        return data;
      })());
    }
    return loaded.get(run);
  };
  const fail = (words) => {
    $("no-samples").textContent = words;
    $("no-samples").hidden = false;
    $("explorer").hidden = true;
  };
  if (typeof DecompressionStream === "undefined") {
    fail("This browser cannot unpack the samples (it has no DecompressionStream). The stored runs have all of them.");
    return;
  }

  const PAGE = 100, CHOOSE = $("detail").textContent;
  const SHOW = [
    ["all", "all", () => true],
    ["lost", "lost against the baseline", (r) => r.c === "lost"],
    ["gained", "gained against the baseline", (r) => r.c === "gained"],
    ["wrong", "wrong", (r) => r.s === "wrong"],
    ["none", "no answer", (r) => r.b && r.b !== "truncated" && r.b !== "failed"],
    ["truncated", "truncated", (r) => r.b === "truncated"],
    ["failed", "failed", (r) => r.b === "failed"],
    ["disagree", "scorers disagree", (r) => Boolean(r.r)],
    ["differs", "text differs from the run beside", (r, other) => other && other.byQuestion.has(r.i) && other.byQuestion.get(r.i).t !== r.t],
    ["flipped", "score differs from the run beside", (r, other) => other && other.byQuestion.has(r.i) && other.byQuestion.get(r.i).s !== r.s],
  ];
  const state = { run: Number(blocks[0].dataset.run), show: "all", page: 0, sample: null, ready: false };
  const which = $("which"), show = $("show"), find = $("find"), other = $("other");
  const beside = async () => (other && other.value !== "" ? load(Number(other.value)) : null);

  const fillShow = (data, mate) => {
    show.replaceChildren(...SHOW.map(([id, name, test]) => {
      const n = data.rows.filter((r) => test(r, mate)).length;
      const option = el("option", "", `${name} (${n})`);
      option.value = id;
      option.disabled = n === 0 && id !== "all";
      return option;
    }).filter((o) => !(o.disabled && ["differs", "flipped"].includes(o.value) && !mate)));
    show.value = state.show;
    if (show.value === state.show && !show.selectedOptions[0].disabled) return "";
    const asked = SHOW.find((s) => s[0] === state.show)[1];
    show.value = state.show = "all";
    return `none is "${asked}", so all are shown`;
  };
  const marks = (r) => [
    el("span", `mark ${r.s}`, r.b || r.s),
    r.c ? el("span", `mark ${r.c}`, r.c) : null,
    r.r ? el("span", "mark", r.r) : null,
  ];
  const block = (run = state.run) => blocks.find((b) => Number(b.dataset.run) === run);
  const link = (r) => `#sample=${r.d}&run=${encodeURIComponent(block().dataset.id)}`;
  const grouped = (n) => n.toLocaleString("en", { useGrouping: "min2" }); // 1319, 53,507: as in the tables
  const counted = (n, name) => `${grouped(n)} ${name}${n === 1 ? "" : "s"}`;

  const pager = [["Previous", -1], ["Next", 1]].map(([name, by]) => {
    const button = el("button", "", name);
    button.type = "button";
    button.addEventListener("click", async () => {
      state.page += by;
      await draw();
      $("list").scrollTop = 0;
    });
    return [button, by];
  });
  $("pages").append(...pager.map(([button]) => button));
  /** The buttons stay, so that the keyboard does; one that ends hands it to the other. */
  const turn = (pages) => {
    const focused = document.activeElement;
    $("pages").hidden = pages < 2;
    for (const [button, by] of pager) button.disabled = state.page + by < 0 || state.page + by >= pages;
    if (pages > 1 && pager.some(([button]) => button === focused && button.disabled))
      pager.find(([button]) => !button.disabled)[0].focus();
  };

  const draw = async (reveal = false) => {
    const data = await load(state.run), mate = await beside();
    const notes = [fillShow(data, mate)];
    const listed = () => {
      const test = SHOW.find((s) => s[0] === state.show)[2], words = find.value.trim().toLowerCase();
      return data.rows.filter((r) => test(r, mate) && (!words || (/^#\d+$/.test(words) ? `#${r.d}` === words : r.find.includes(words))));
    };
    let hits = listed();
    if (reveal && data.byDoc.has(state.sample)) {
      if (!hits.some((r) => r.d === state.sample)) {
        show.value = state.show = "all";
        find.value = "";
        hits = listed();
        notes.push(`filter and search were cleared to show #${state.sample}`);
      }
      state.page = Math.floor(hits.findIndex((r) => r.d === state.sample) / PAGE);
    }
    const pages = Math.max(1, Math.ceil(hits.length / PAGE));
    state.page = Math.max(0, Math.min(state.page, pages - 1));
    const part = hits.slice(state.page * PAGE, (state.page + 1) * PAGE);
    $("count").textContent = [`${grouped(hits.length)} of ${counted(data.rows.length, "sample")}` +
      (pages > 1 ? `, page ${state.page + 1} of ${pages}` : ""), ...notes.filter(Boolean)].join("; ");
    $("list").replaceChildren(...part.map((r) => {
      const a = el("a", "", el("span", "doc", `#${r.d}`), ...marks(r), el("span", "start", (r.q || "").slice(0, 90)));
      a.href = link(r);
      if (r.d === state.sample) a.setAttribute("aria-current", "true");
      return el("li", "", a);
    }));
    turn(pages);
    const marked = reveal && $("list").querySelector("[aria-current]");
    if (marked) {
      const box = $("list").getBoundingClientRect(), at = marked.getBoundingClientRect();
      if (at.top < box.top || at.bottom > box.bottom) $("list").scrollTop += at.top - box.top - box.height / 3;
    }
  };

  /** The text cut into its tokens; [] where the run stored none. */
  const tokens = (r) => {
    if (r.p) return r.p;
    const whole = (r.t || "") + (r.a || ""), out = [];
    let at = 0;
    for (const n of r.l || []) out.push(whole.slice(at, at += n));
    return out;
  };
  const plain = (piece) => piece.replaceAll("\n", "\u23ce\n") || "\u2205";

  /** Steps as frames. What is seen and what is heard say the same: the kind of each token, and what the step did. */
  const steps = (r) => {
    const list = el("ol", "steps"), pieces = tokens(r);
    const said = (words) => el("span", "unseen", ` ${words} `);
    let at = 1;
    if (pieces.length) list.append(el("li", "first", said("from the prompt:"), el("span", "own", plain(pieces[0]))));
    (r.n || []).forEach(([k, accepted, kept, cut = "", rejected = [], sure = []], i) => {
      const item = el("li"), stopped = cut === "stop", past = stopped ? k - kept : accepted - kept;
      const drafts = pieces.slice(at, at + kept), own = pieces[at + kept];
      const what = k ? `step ${i + 1}: ${accepted} of ${k} accepted` : `step ${i + 1}: no draft`;
      const ends = past > 0 ? `+${past} past the ${stopped ? "stop" : "limit"}` : "";
      item.title = ends ? `${what}, ${ends}` : what;
      item.append(said(`${what}.`));
      if (drafts.length) item.append(said("accepted:"));
      drafts.forEach((piece, j) => {
        const span = el("span", "kept", plain(piece));
        if (sure[j] !== undefined) span.title = `accepted, draft ${j + 1}, confidence ${sure[j]}`;
        item.append(span);
      });
      if (!pieces.length && k) item.append(el("span", "kept", `${kept} of ${k}`));
      if (!stopped) rejected.forEach((piece, j) => {
        if (j < 2) item.append(said(j ? "drafted after it:" : "rejected:"));
        const span = el("del", j ? "later" : "rejected", plain(piece).replaceAll("\n", ""));
        const c = sure[accepted + j];
        span.title = (j ? "drafted after the rejected one" : "rejected") + (c === undefined ? "" : `, confidence ${c}`);
        item.append(span);
      });
      const stops = stopped ? "the answer stopped here" : cut === "limit" ? "cut at the token limit" : "";
      if (own !== undefined && !(stops && at + kept >= pieces.length)) item.append(said("own:"), el("span", "own", plain(own)));
      if (ends) item.append(el("span", "stop", ends));
      const last = i === r.n.length - 1 && (r.f || "").includes("(stop)");
      if (stops || last) item.append(el("span", "stop", stops || "stop"));
      list.append(item);
      at += kept + 1;
    });
    return list;
  };

  const box = (name, body, cls) => {
    const pre = el("pre", "", body);
    pre.dataset.called = `${name} of the sample`;
    sized.observe(pre);
    return el("section", cls || "", el("h4", "", name), pre);
  };
  /** Text with the part after the first difference marked. */
  const marked = (text, against) => {
    if (against === undefined || text === against) return text || "(empty)";
    let i = 0;
    while (i < text.length && text[i] === against[i]) i += 1;
    return el("span", "", text.slice(0, i), el("mark", "", text.slice(i) || "(ends)"));
  };
  const facts = (pairs) => {
    const dl = el("dl", "facts");
    for (const [name, value] of pairs) if (value) dl.append(el("div", "", el("dt", "", name), el("dd", "", value)));
    return dl;
  };

  const focusOn = (into) => {
    into.focus({ preventScroll: true });
    into.scrollIntoView({ block: "nearest" });
  };
  /** In place of a sample: why there is none. */
  const tell = (words, cls = "missing") => {
    $("detail").replaceChildren(el("p", cls, words));
    delete $("explorer").dataset.open;
    for (const a of $("list").querySelectorAll("[aria-current]")) a.removeAttribute("aria-current");
  };
  const detail = async (moveFocus, note = "") => {
    const data = await load(state.run), mate = await beside(), r = data.byDoc.get(state.sample), into = $("detail");
    if (!r) {
      const { shown, total } = block().dataset, part = shown !== total ? `, which holds ${shown} of the ${total} samples` : "";
      tell(`Sample #${state.sample} of ${data.label} (run ${data.run}) is not in this page${part}.`);
      if (moveFocus) focusOn(into);
      return;
    }
    const there = mate && mate.byQuestion.get(r.i), self = el("a", "", "link to this sample");
    self.href = link(r);
    const verify = (r.n || []).filter((s) => s[0] >= 1), sum = verify.reduce((n, s) => n + s[1], 0);
    const head = el("h3", "", `Sample #${r.d} `, blocks.length > 1 ? `of ${data.label} ` : "", ...marks(r));
    const body = r.e ? [box("Error", r.e)] : [];
    const texts = el("div", "texts", box("Question", r.q || "not recorded"), box("Gold", r.g || "not recorded"),
      box(mate ? data.label : "Output", r.e ? "(no output: the request failed)" : marked(r.t || "", there ? there.t || "" : undefined)));
    if (mate) texts.append(box(mate.label, there ? marked(there.t || "", r.t || "") : "not in this page"));
    const readings = (r.x || []).map(([name, got]) => {
      const score = (r.v || []).find((v) => v[0] === name);
      return [name, `${got || "found nothing"}${score ? (score[1] === 1 ? ", right" : ", wrong") : ""}`];
    });
    body.push(texts, facts([...readings, ["canonical", r.w], ["finish", r.f], ["category", r.k],
      ["accepted length", verify.length ? `${(1 + sum / verify.length).toFixed(3)} over ${verify.length} steps` : "no verify step"]]));
    if (r.n && r.n.length) {
      body.push(el("h4", "", "Tokens"));
      if (!tokens(r).length) body.push(el("p", "missing", "This run stored no tokens: only how many drafts each step kept."));
      body.push(steps(r));
      body.push(el("p", "legend", el("span", "kept", "draft, accepted"), el("del", "rejected", "draft, rejected"), el("del", "later", "drafted after it"),
        el("span", "own", "the target's own"), el("span", "hint", "The target's own token stands where a rejected one would have, and is the next step's anchor. A frame is a verify step.")));
    } else if (!r.e) body.push(el("p", "missing", "No steps are stored for this sample."));
    into.replaceChildren(...(note ? [el("p", "missing", note)] : []), head, el("p", "hint", self), ...body);
    $("explorer").dataset.open = "";
    for (const a of $("list").querySelectorAll("a")) {
      if (a.getAttribute("href") === link(r)) a.setAttribute("aria-current", "true");
      else a.removeAttribute("aria-current");
    }
    if (moveFocus) focusOn(into);
  };

  const start = async () => {
    if (state.ready) return;
    state.ready = true;
    try {
      $("explorer").hidden = false;
      await draw();
    } catch (error) {
      fail("The samples of this page are damaged: write the report again. The stored runs have all of them.");
    }
  };
  /** The run that a link names: by its id, or as older pages did by its place. */
  const named = (word) => blocks.find((b) => b.dataset.id === word) ?? (/^\d+$/.test(word) ? block(Number(word)) : undefined);
  /** What is wrong with a link in words; "" where it names a sample of a run of this page. */
  const misread = (asked) => {
    const doc = asked.get("sample"), run = asked.get("run");
    if (!/^\d{1,15}$/.test(doc)) return `"${doc}" is no sample's number: a link is #sample=NUMBER&run=RUN.`;
    if (run === null || named(run)) return "";
    return `This page has no run "${run}". It has ${blocks.map((b) => b.dataset.id).join(", ")}.`;
  };
  const route = async () => {
    const asked = new URLSearchParams(location.hash.slice(1));
    if (!asked.has("sample")) return;
    const wrong = misread(asked), run = asked.get("run");
    if (!wrong) {
      if (run !== null) state.run = Number(named(run).dataset.run);
      if (which) which.value = String(state.run);
      state.sample = Number(asked.get("sample"));
    } else state.sample = null;
    await start();
    if ($("explorer").hidden) return;
    if (wrong) {
      tell(wrong);
      focusOn($("detail"));
      return;
    }
    await draw(true);
    await detail(true, run === null && blocks.length > 1 ? "The link names no run: this is the sample of the run chosen above." : "");
  };
  /** Another run: the sample that is open stays open as that run's own, or is closed. The address follows. */
  const change = async () => {
    const before = state.sample !== null && (await load(state.run)).byDoc.get(state.sample);
    state.run = Number(which.value);
    const now = before && (await load(state.run)).byQuestion.get(before.i);
    state.sample = now ? now.d : null;
    state.page = 0;
    await draw(Boolean(now));
    if (now) await detail(false);
    else tell(before ? `${block().dataset.label} has no sample of the question that was open.` : CHOOSE, before ? "missing" : "hint");
    if (location.hash.startsWith("#sample=")) history.replaceState(null, "", now ? link(now) : "#samples");
  };
  let waiting;
  find.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(() => { state.page = 0; draw(); }, 120); });
  show.addEventListener("change", () => { state.show = show.value; state.page = 0; draw(); });
  which?.addEventListener("change", change);
  other?.addEventListener("change", async () => { state.page = 0; await draw(); if (state.sample !== null) await detail(false); });
  $("filters").addEventListener("submit", (event) => event.preventDefault());
  addEventListener("hashchange", route);
  if (location.hash.startsWith("#sample=")) route();
  else new IntersectionObserver((seen, watcher) => { if (seen.some((s) => s.isIntersecting)) { watcher.disconnect(); start(); } },
    { rootMargin: "600px" }).observe($("samples"));
})();
