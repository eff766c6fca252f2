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
        const asked = await questions, data = await unpack(blocks.find((b) => b.dataset.run === String(run)));
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

  const PAGE = 100;
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
    if (show.value !== state.show || show.selectedOptions[0].disabled) show.value = state.show = "all";
  };
  const marks = (r) => [
    el("span", `mark ${r.s}`, r.b || r.s),
    r.c ? el("span", `mark ${r.c}`, r.c) : null,
    r.r ? el("span", "mark", r.r) : null,
  ];
  const link = (r) => `#sample=${r.d}&run=${state.run}`;

  const draw = async () => {
    const data = await load(state.run), mate = await beside();
    fillShow(data, mate);
    const test = SHOW.find((s) => s[0] === state.show)[2], words = find.value.trim().toLowerCase();
    const hits = data.rows.filter((r) => test(r, mate) && (!words || (/^#\d+$/.test(words) ? `#${r.d}` === words : r.find.includes(words))));
    const pages = Math.max(1, Math.ceil(hits.length / PAGE));
    state.page = Math.min(state.page, pages - 1);
    const part = hits.slice(state.page * PAGE, (state.page + 1) * PAGE);
    $("count").textContent = `${hits.length.toLocaleString("en")} of ${data.rows.length.toLocaleString("en")} samples` +
      (pages > 1 ? `, page ${state.page + 1} of ${pages}` : "");
    $("list").replaceChildren(...part.map((r) => {
      const a = el("a", "", el("span", "doc", `#${r.d}`), ...marks(r), el("span", "start", (r.q || "").slice(0, 90)));
      a.href = link(r);
      if (r.d === state.sample) a.setAttribute("aria-current", "true");
      return el("li", "", a);
    }));
    $("pages").replaceChildren(...(pages > 1 ? [["Previous", -1], ["Next", 1]].map(([name, by]) => {
      const button = el("button", "", name);
      button.type = "button";
      button.disabled = state.page + by < 0 || state.page + by >= pages;
      button.addEventListener("click", () => { state.page += by; draw(); });
      return button;
    }) : []));
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

  const steps = (r) => {
    const list = el("ol", "steps"), pieces = tokens(r);
    let at = 1;
    if (pieces.length) list.append(el("li", "first", el("span", "own", plain(pieces[0])), el("span", "unseen", " from the prompt")));
    (r.n || []).forEach(([k, accepted, kept, cut = "", rejected = [], sure = []], i) => {
      const item = el("li");
      const drafts = pieces.slice(at, at + kept), own = pieces[at + kept];
      drafts.forEach((piece, j) => {
        const span = el("span", "kept", plain(piece));
        if (sure[j] !== undefined) span.title = `draft ${j + 1}, confidence ${sure[j]}`;
        item.append(span);
      });
      if (!pieces.length) item.append(el("span", "kept", `${accepted} of ${k}`));
      if (accepted > kept) item.append(el("span", "lost", `+${accepted - kept} past the end`));
      const stopped = cut === "stop";
      if (stopped && rejected.length) item.append(el("span", "stop", `+${rejected.length} past the stop`));
      if (!stopped) rejected.forEach((piece, j) => {
        const span = el("del", j ? "later" : "rejected", plain(piece).replaceAll("\n", ""));
        const c = sure[accepted + j];
        span.title = (j ? "drafted after the rejected one" : "rejected") + (c === undefined ? "" : `, confidence ${c}`);
        item.append(span);
      });
      const stops = cut === "stop" ? "the answer stopped here" : cut === "limit" ? "cut at the token limit" : "";
      if (own !== undefined && !(stops && at + kept >= pieces.length)) item.append(el("span", "own", plain(own)));
      const last = i === r.n.length - 1 && (r.f || "").includes("(stop)");
      if (stops || last) item.append(el("span", "stop", stops || "stop"));
      const what = k ? `step ${i + 1}: ${accepted} of ${k} accepted` : `step ${i + 1}: no draft`;
      item.title = what;
      item.append(el("span", "unseen", ` (${what}${rejected.length ? `, rejected ${rejected.length}` : ""})`));
      list.append(item);
      at += kept + 1;
    });
    return list;
  };

  const box = (name, body, cls) => el("section", cls || "", el("h4", "", name), el("pre", "", body));
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

  const detail = async (moveFocus) => {
    const data = await load(state.run), mate = await beside(), r = data.byDoc.get(state.sample), into = $("detail");
    if (!r) {
      into.replaceChildren(el("p", "missing", `Sample #${state.sample} is not in this page.`));
      return;
    }
    const there = mate && mate.byQuestion.get(r.i), self = el("a", "", "link to this sample");
    self.href = link(r);
    const verify = (r.n || []).filter((s) => s[0] >= 1), sum = verify.reduce((n, s) => n + s[1], 0);
    const head = el("h3", "", `Sample #${r.d} `, ...marks(r));
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
    into.replaceChildren(head, el("p", "hint", self), ...body);
    for (const a of $("list").querySelectorAll("a")) {
      if (a.getAttribute("href") === link(r)) a.setAttribute("aria-current", "true");
      else a.removeAttribute("aria-current");
    }
    if (moveFocus) {
      into.focus({ preventScroll: true });
      into.scrollIntoView({ block: "nearest" });
    }
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
  const route = async () => {
    const asked = new URLSearchParams(location.hash.slice(1));
    if (!asked.has("sample")) return;
    const run = Number(asked.get("run") ?? state.run);
    if (blocks.some((b) => Number(b.dataset.run) === run) && run !== state.run) {
      state.run = run;
      if (which) which.value = String(run);
      if (state.ready) await draw();
    }
    state.sample = Number(asked.get("sample"));
    await start();
    if (!$("explorer").hidden) await detail(true);
  };
  let waiting;
  find.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(() => { state.page = 0; draw(); }, 120); });
  show.addEventListener("change", () => { state.show = show.value; state.page = 0; draw(); });
  for (const [box_, act] of [[which, () => { state.run = Number(which.value); state.sample = null; }], [other, () => {}]])
    if (box_) box_.addEventListener("change", async () => { act(); state.page = 0; await draw(); if (state.sample !== null) await detail(false); });
  $("filters").addEventListener("submit", (event) => event.preventDefault());
  addEventListener("hashchange", route);
  addEventListener("beforeprint", () => { for (const d of document.querySelectorAll("main details:not(.numbers, .long)")) d.open = true; });
  if (location.hash.startsWith("#sample=")) route();
  else new IntersectionObserver((seen, watcher) => { if (seen.some((s) => s.isIntersecting)) { watcher.disconnect(); start(); } },
    { rootMargin: "600px" }).observe($("samples"));
})();
