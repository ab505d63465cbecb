"use strict";

// --- address ------------------------------------------------------------------------------------

const PAUSE = 200;

/** The element that a fragment names; null without one. */
function placeOf(anchor) {
  try {
    return document.getElementById(decodeURIComponent(anchor));
  } catch {
    return null; // someone typed a stray %
  }
}

/** Whether the reader asks for a new tab, a download …: that is left to the browser. */
function isSpecial(event) {
  return event.ctrlKey || event.metaKey || event.shiftKey || event.altKey;
}

/** The fragment: #anchor, or #anchor?study=…&depth=…&hidden=… where the explorer shows other things
 * than at first. It is read anew each time: the reader may have gone back meanwhile. */
const address = {
  get anchor() {
    return location.hash.slice(1).split("?")[0];
  },

  get settings() {
    return new URLSearchParams(location.hash.split("?")[1]);
  },

  /** With `isStep`, the reader can go back to what was there before. */
  write({ anchor = this.anchor, settings = this.settings, isStep = false }) {
    const query = settings.toString();
    const fragment = `#${anchor}${query && `?${query}`}`;
    if (fragment === (location.hash || "#")) return;
    history[isStep ? "pushState" : "replaceState"]({ isOurs: true }, "", fragment);
  },

  /** Show the section that the address names, from the place that it names. */
  go() {
    const place = placeOf(this.anchor);
    showSection(place?.closest("main > section") ?? sections[0]);
    unfold(place);
    if (place) place.scrollIntoView();
    else window.scrollTo(0, 0);
  },
};

function setUpAddress(show) {
  address.go();
  window.addEventListener("hashchange", () => {
    show();
    address.go();
  });
  // A link to a place of the page keeps what the explorer shows, unless it leads into that.
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#']");
    if (!link || isSpecial(event)) return;
    const [anchor, query] = link.hash.slice(1).split("?");
    event.preventDefault();
    const settings = query ? new URLSearchParams(query) : address.settings;
    address.write({ anchor, settings, isStep: true });
    address.go();
    if (query) show();
  });
}

// --- what is packed -----------------------------------------------------------------------------

/** The bytes that were packed: compressed, in base64. */
async function unpacked(text) {
  const compressed = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([compressed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function textOf(bytes) {
  return new TextDecoder().decode(bytes);
}

// --- contents -----------------------------------------------------------------------------------

const sections = [...document.querySelectorAll("main > section")];

/** Show one section. The others are hidden, but for a search in the page, which opens its find. */
function showSection(section) {
  for (const other of sections) {
    if (other === section) other.removeAttribute("hidden");
    else other.setAttribute("hidden", "until-found");
    const link = document.querySelector(`#contents a[href="#${other.id}"]`);
    link.toggleAttribute("aria-current", other === section);
    link.parentElement.classList.toggle("current", other === section);
  }
}

function setUpContents() {
  const nav = document.querySelector("#contents");
  const button = document.querySelector("header button");
  const show = (open) => button.setAttribute("aria-expanded", String(open));
  button.addEventListener("click", () => show(button.getAttribute("aria-expanded") === "false"));
  nav.addEventListener("click", (event) => {
    if (event.target.closest("a")) show(false);
  });

  for (const section of sections) section.addEventListener("beforematch", () => showSection(section));
  nav.classList.add("marked");

  // The address keeps the place that it names while that is in sight, then names the one read.
  const places = [...nav.querySelectorAll("a")].map((link) => placeOf(link.hash.slice(1)));
  const isAbove = (place) => place.getBoundingClientRect().top < window.innerHeight / 2;
  const keepPlace = () => {
    const named = placeOf(address.anchor)?.getBoundingClientRect().top;
    if (named >= 0 && named < window.innerHeight) return;
    const shown = places.filter((place) => !place.closest("main > section").hidden);
    const read = shown.findLast(isAbove);
    if (read) address.write({ anchor: read.id });
  };
  let pause;
  document.addEventListener(
    "scroll",
    () => {
      clearTimeout(pause); // browsers refuse an address that changes too often
      pause = setTimeout(keepPlace, PAUSE);
    },
    { passive: true },
  );
}

// --- tables -------------------------------------------------------------------------------------

/** The number that a cell starts with, as in "(1.7 ± 0.6)·10^−6" or "93 %"; NaN without one. */
function numberOf(text) {
  const plain = text
    .trim()
    .replaceAll("−", "-")
    .replace(/(\d)[ \u00a0\u202f](?=\d{3}(?!\d))/g, "$1");
  const found = /^[(<]*(-?(?:\d+(?:\.\d+)?(?:e[-+]?\d+)?|inf\b))/.exec(plain);
  if (!found) return NaN;
  const value = Number(found[1].replace("inf", "Infinity"));
  const power = /^[^·]*·10\^(-?\d+)/.exec(plain);
  // "<0.5 %" comes before "0.5 %".
  return value * (power ? 10 ** Number(power[1]) : 1) * (plain.startsWith("<") ? 1 - 1e-9 : 1);
}

/** Rows in the order of a column; what is no number in a column of numbers comes last. */
function sorted(rows, column, direction) {
  const sign = direction === "ascending" ? 1 : -1;
  const keyed = rows.map((row) => {
    const text = row.cells[column].textContent;
    return { row, text, value: numberOf(text) };
  });
  const isNumeric = 2 * keyed.filter((key) => !Number.isNaN(key.value)).length >= keyed.length;
  const compare = (a, b) => {
    if (!isNumeric) return sign * a.text.localeCompare(b.text, "en");
    const lacking = Number.isNaN(a.value) - Number.isNaN(b.value);
    if (lacking || Number.isNaN(a.value)) return lacking;
    return a.value === b.value ? 0 : sign * (a.value < b.value ? -1 : 1);
  };
  return keyed.sort(compare).map((key) => key.row);
}

/** What stands above each column of a table. */
function titlesOfColumns(table) {
  return [...(table.tHead?.rows[0].cells ?? [])].map((head) => head.textContent.trim());
}

/** Which column has the verdicts, -1 without one. Where a kept result stands beside, those made here
 * count, and columns are headed by where a verdict is from. */
function columnOfVerdicts(table) {
  const titles = titlesOfColumns(table);
  const own = titles.findIndex((title) => title.includes("verdict"));
  if (own >= 0 || titles[0] !== "claim") return own;
  const sides = ["here", "at the reference scale"].map((title) => titles.indexOf(title));
  return sides.find((column) => column >= 0) ?? -1;
}

/** On a phone a table of words becomes cards, a row each, with the verdict right below its name;
 * one of numbers scrolls, and its first column stays. Style sheets know the rest. */
function setUpCards(table) {
  const heads = [...(table.tHead?.rows[0].cells ?? [])];
  const titles = titlesOfColumns(table);
  const isOfWords = heads.every((head) => !head.classList.contains("n"));
  const isWide = heads.length > 2;
  const judges = columnOfVerdicts(table) >= 0;
  if (!judges && !(isOfWords && isWide)) return;
  table.classList.add("cards");
  for (const row of table.tBodies[0]?.rows ?? []) {
    [...row.cells].forEach((cell, i) => {
      cell.dataset.title = titles[i];
    });
  }
}

/** The answers are cards on any screen: a question, the answer, and what it rests on. */
function isOfAnswers(table) {
  return titlesOfColumns(table).join() === "question,answer,evidence";
}

const MANY_VERDICTS = 10;

/** Above a long table of claims: a field for words, and a button for each verdict. */
function setUpFilter(table) {
  const column = columnOfVerdicts(table);
  const rows = [...(table.tBodies[0]?.rows ?? [])];
  const isOfClaims = titlesOfColumns(table)[0] === "claim" && column >= 0;
  if (!isOfClaims || rows.length < MANY_VERDICTS) return;
  const verdictOf = ({ cells }) => (cells[column].querySelector("strong") ?? cells[column]).textContent;
  const chosen = new Set();
  const bar = document.createElement("search");
  bar.className = "filter";
  const words = document.createElement("input");
  words.type = "search";
  words.placeholder = "words of a claim or a source";
  words.setAttribute("aria-label", "Show claims with these words");
  bar.append(words);
  const show = () => {
    const asked = words.value.toLowerCase();
    for (const row of rows) {
      const isAsked = !chosen.size || chosen.has(verdictOf(row));
      row.hidden = !(isAsked && row.textContent.toLowerCase().includes(asked));
    }
    unfold(table);
  };
  for (const verdict of new Set(rows.map(verdictOf))) {
    const count = rows.filter((row) => verdictOf(row) === verdict).length;
    const button = element("button", `${verdict} ${count}`);
    button.type = "button";
    button.setAttribute("aria-pressed", "false");
    button.addEventListener("click", () => {
      if (!chosen.delete(verdict)) chosen.add(verdict);
      button.setAttribute("aria-pressed", String(chosen.has(verdict)));
      show();
    });
    bar.append(button);
  }
  words.addEventListener("input", show);
  (table.closest(".table") ?? table).before(bar);
}

/** The scorecard, which is long, opens when it is asked for; its filter stays in sight. A search of
 * the browser in the page opens it by itself. */
function setUpFold(table) {
  const [first, second] = titlesOfColumns(table);
  if (first !== "claim" || second !== "source") return;
  const fold = document.createElement("details");
  const box = table.closest(".table") ?? table;
  box.replaceWith(fold);
  fold.append(element("summary", `The ${table.tBodies[0]?.rows.length ?? 0} claims, by source`), box);
}

/** Open what a place is folded into, if it is. */
function unfold(place) {
  const fold = place?.closest("details");
  if (fold) fold.open = true;
}

/** A click on a head sorts upwards, the next one downwards, the third as written. */
function setUpTable(table) {
  const body = table.tBodies[0];
  if (!body || body.rows.length < 2) return;
  const written = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];
  const next = { none: "ascending", ascending: "descending", descending: "none" };
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    head.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => {
      const direction = next[head.getAttribute("aria-sort")];
      for (const other of heads) other.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", direction);
      body.append(...(direction === "none" ? written : sorted(written, column, direction)));
    });
  });
}

// --- figures ------------------------------------------------------------------------------------

function setUpFigures() {
  const dialog = document.querySelector("dialog.enlarged");
  const [image, caption] = [dialog.querySelector("img"), dialog.querySelector("p")];
  for (const small of document.querySelectorAll("main img")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "enlarge";
    button.title = "Enlarge";
    small.replaceWith(button);
    button.append(small);
    button.addEventListener("click", () => {
      image.src = small.src;
      image.alt = small.alt;
      caption.textContent = small.closest("figure")?.querySelector("figcaption")?.textContent ?? "";
      dialog.showModal();
    });
  }
  closeOutside(dialog);
}

/** Every figure gets its drawing, those of the section that is shown first. */
async function drawFigures() {
  const isHidden = (image) => Boolean(image.closest("main > section").hidden);
  const images = [...document.querySelectorAll("main img[data-svg]")];
  for (const image of images.sort((a, b) => isHidden(a) - isHidden(b))) {
    const drawing = new Blob([await unpacked(image.dataset.svg)], { type: "image/svg+xml" });
    image.src = URL.createObjectURL(drawing);
    delete image.dataset.svg;
  }
}

/** A click beside a dialog closes it; Escape and its button do without a script. */
function closeOutside(dialog) {
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
}

// --- evidence -----------------------------------------------------------------------------------

/** An element with a text. */
function element(tag, text) {
  const made = document.createElement(tag);
  made.textContent = text;
  return made;
}

/** The dialog with names and their values. */
function openRows(title, words, rows) {
  const dialog = document.querySelector("dialog.evidence");
  dialog.querySelector("h2").textContent = title;
  dialog.querySelector("p").textContent = words;
  dialog.querySelector("tbody").replaceChildren(
    ...rows.map(([name, value]) => {
      const row = document.createElement("tr");
      const head = element("th", name);
      head.scope = "row";
      row.append(head, element("td", value));
      return row;
    }),
  );
  dialog.showModal();
  dialog.scrollTop = 0;
}

/** A link to a line of a table opens that row here: no browser shows a line of a CSV. */
function setUpEvidence() {
  const dialog = document.querySelector("dialog.evidence");
  let tables; // read when it is first asked for
  const show = async (name, line) => {
    tables ??= unpacked(dialog.querySelector("script").textContent).then(textOf).then(JSON.parse);
    const table = (await tables)[name];
    const row = table?.rows[line];
    if (!row) return false;
    const all = table.columns.map((column, i) => [column, row[i]]);
    const filled = all.filter(([, value]) => value !== "");
    const of = table.naming
      .map((column) => [column, row[table.columns.indexOf(column)]])
      .filter(([, value]) => value !== "");
    // A number alone would not say of what.
    const said = of.map(([column, value]) => (/^\d/.test(value) ? `${column} ${value}` : value));
    const empty = all.length - filled.length;
    const words =
      `Line ${line} of tables/${name}` +
      (empty ? `, without the ${empty} columns that are empty there.` : ".");
    openRows(`${name}: ${said.join(", ")}`, words, filled);
    const { code, words: labels } = await commonTitles();
    const inNames = { code, words: code }; // what names a row are names as in code
    entitle(dialog.querySelector("h2"), inNames);
    for (const { cells } of dialog.querySelector("tbody").rows) {
      const isNaming = table.naming.includes(cells[0].textContent);
      entitle(cells[1], isNaming ? inNames : { code, words: labels });
    }
    return true;
  };
  document.querySelector("main").addEventListener("click", (event) => {
    const link = event.target.closest("a");
    const [, name, line] = /^tables\/([\w-]+\.csv)#L(\d+)$/.exec(link?.getAttribute("href")) ?? [];
    // With a key held, the reader asks for the file in a tab of its own.
    if (!name || isSpecial(event)) return;
    event.preventDefault();
    const follow = () => location.assign(link.href);
    show(name, line).then((isShown) => isShown || follow(), follow);
  });
  closeOutside(dialog);
}

// --- variants -----------------------------------------------------------------------------------

/** What is told of a variant where its name is pointed at, in parts. */
function toldOf(card) {
  const own = ["differs from the scheme in", "differs from the study in"].map((key) => card[key]);
  return [card.label, card.scheme && `scheme ${card.scheme}`, ...own].filter(Boolean);
}

/** What all these studies' variants of one name have in common, and all of one label: a map for
 * code, where names stand, and one for words, where labels do. */
function titlesOf(studies) {
  const told = { code: new Map(), words: new Map() };
  const tell = (titles, key, parts) => {
    titles.set(key, titles.get(key)?.filter((part) => parts.includes(part)) ?? parts);
  };
  for (const [name, card] of studies.flatMap(Object.entries)) {
    tell(told.code, name, toldOf(card));
    if (card.label) tell(told.words, card.label, [name, ...toldOf({ ...card, label: "" })]);
  }
  const said = (titles) => new Map([...titles].map(([key, parts]) => [key, parts.join("; ")]));
  return { code: said(told.code), words: said(told.words) };
}

/** What finds these names in a text, the longest first; lines may break inside them. */
function patternOf(names) {
  const patterns = [...names]
    .sort((a, b) => b.length - a.length)
    .map((name) => name.replace(/[.*+?^${}()|[\]\\]/g, "\\$&").replaceAll(" ", "\\s+"));
  return new RegExp(`(?<![\\w-])(${patterns.join("|") || "(?!)"})(?![\\w-])`);
}

/** Give names in code and labels in words their titles. A name may be a plain word, as `scaled`. */
function entitle(section, titles) {
  const patterns = { code: patternOf(titles.code.keys()), words: patternOf(titles.words.keys()) };
  const walker = document.createTreeWalker(section, NodeFilter.SHOW_TEXT);
  const texts = [];
  while (walker.nextNode()) texts.push(walker.currentNode);
  for (const text of texts) {
    const kind = text.parentElement.closest("code") ? "code" : "words";
    const pieces = text.data.split(patterns[kind]);
    if (pieces.length === 1) continue;
    const named = pieces.map((piece, i) => {
      const title = i % 2 ? titles[kind].get(piece.replace(/\s+/g, " ")) : "";
      if (!title) return piece;
      const name = element("abbr", piece);
      name.title = title;
      return name;
    });
    text.replaceWith(...named);
  }
}

/** The dialog with the card of a variant. */
async function openCard(study, variant) {
  const { words, studies } = await variantCards();
  const { label, ...rest } = studies[study][variant];
  openRows(label ? `${label} (${variant})` : variant, words, Object.entries(rest));
}

/** What is known of every variant, read once. */
function variantCards() {
  variantCards.read ??= unpacked(document.querySelector("#cards").textContent).then(textOf).then(JSON.parse);
  return variantCards.read;
}

/** In the table of a study's variants, a label, a name and a scheme open the card. */
function setUpVariantTable(section) {
  const table = section.querySelector("table");
  const titles = table ? titlesOfColumns(table) : [];
  if (titles[0] !== "variant" || titles[2] !== "scheme") return;
  for (const row of table.tBodies[0].rows) {
    const variant = row.cells[1].textContent; // beside its label
    for (const cell of [...row.cells].slice(0, 3)) {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "card";
      button.setAttribute("aria-haspopup", "dialog");
      button.append(...cell.childNodes);
      button.addEventListener("click", () => openCard(section.dataset.study, variant));
      cell.append(button);
    }
  }
}

/** The titles of names outside the report of a study. */
async function commonTitles() {
  const { studies } = await variantCards();
  return titlesOf(Object.values(studies));
}

async function setUpVariants() {
  const [{ studies }, common] = await Promise.all([variantCards(), commonTitles()]);
  for (const section of document.querySelectorAll("main > section:not(.explorer)")) {
    const { study } = section.dataset;
    if (study) setUpVariantTable(section);
    entitle(section, study in studies ? titlesOf([studies[study]]) : common);
  }
}

// --- explorer: numbers --------------------------------------------------------------------------

const DIGITS = 5; // that the numbers have

/** Numbers in single precision whose first bytes stand before their second ones. NaN is a gap. */
function floatsOf(columns) {
  const count = columns.length / Float32Array.BYTES_PER_ELEMENT;
  const raw = new Uint8Array(columns.length);
  columns.forEach((byte, i) => {
    raw[(i % count) * Float32Array.BYTES_PER_ELEMENT + Math.floor(i / count)] = byte;
  });
  return new Float32Array(raw.buffer);
}

/** A study as it was packed: a line of JSON, then all numbers, metric by metric. */
function studyOf(bytes) {
  const end = bytes.indexOf("\n".charCodeAt());
  const study = JSON.parse(textOf(bytes.subarray(0, end)));
  const numbers = floatsOf(bytes.subarray(end + 1));
  let taken = 0;
  const take = (count) => numbers.subarray(taken, (taken += count));
  for (const run of study.runs) run.steps = study.grids[run.grid];
  for (const metric of study.metrics.step) {
    metric.values = new Map(metric.runs.map((i) => [i, take(study.runs[i].steps.length)]));
  }
  for (const metric of study.metrics.depth) metric.values = take(study.runs.length);
  return study;
}

/** The points of one run in a metric: one against depth, else one for each step. */
function pointsOf(run, i, metric, against) {
  if (against === "depth") return [{ x: run.depth, y: metric.values[i], run }];
  const points = [...(metric.values.get(i) ?? [])].map((y, at) => ({ x: run.steps[at], y, run }));
  return metric.sparse ? points.filter(({ y }) => !Number.isNaN(y)) : points;
}

/** A depth in words. `unit`: what it counts, in the singular. */
function countOf(depth, unit) {
  return `${depth} ${unit}${depth === 1 ? "" : "s"}`;
}

/** The depth that most variants have, the largest of several: there they can be compared. */
function commonDepth(runs) {
  const variants = new Map();
  for (const { depth, variant } of runs) {
    variants.set(depth, (variants.get(depth) ?? new Set()).add(variant));
  }
  const [common] = [...variants].sort(([a, x], [b, y]) => y.size - x.size || b - a)[0];
  return common;
}

/** Whether a run is on the platform that is shown, and at the depth, if there is only one. */
function isHere(run, { platform, against, depth }) {
  return run.platform === platform && (against === "depth" || run.depth === Number(depth));
}

/** A curve for each variant and seed: its points by step or depth. */
function curvesOf(study, view) {
  const found = new Map();
  study.runs.forEach((run, i) => {
    if (!isHere(run, view)) return;
    const key = `${run.variant} ${run.seed}`;
    if (!found.has(key)) found.set(key, { ...run, points: [] });
    found.get(key).points.push(...pointsOf(run, i, view.metric, view.against));
  });
  const order = Object.keys(study.variants);
  const curves = [...found.values()];
  for (const { points } of curves) points.sort((a, b) => a.x - b.x);
  return curves.sort((a, b) => order.indexOf(a.variant) - order.indexOf(b.variant));
}

/** Curves in relation to the plain network's of the same seed, where that has a point too. */
function compared(curves, plain, relation) {
  const plains = new Map(
    curves
      .filter(({ variant }) => variant === plain)
      .map(({ seed, points }) => [seed, new Map(points.map(({ x, y }) => [x, y]))]),
  );
  const relate = relation === "ratio" ? (a, b) => a / b : (a, b) => a - b;
  return curves.map((curve) => {
    const other = plains.get(curve.seed) ?? new Map();
    const both = curve.points.filter(({ x }) => other.has(x));
    const points = both.map((point) => {
      const y = relate(point.y, other.get(point.x));
      return { ...point, y: Number.isFinite(y) ? y : NaN };
    });
    return { ...curve, points };
  });
}

/** Of numbers, the mean: of their logarithms, if asked for and all are positive. */
function meanOf(numbers, isGeometric) {
  const sum = (terms) => terms.reduce((a, b) => a + b, 0) / terms.length;
  if (!isGeometric || numbers.some((number) => number <= 0)) return sum(numbers);
  return Math.exp(sum(numbers.map(Math.log)));
}

/** Mean and range over the seeds of each variant. Against step a point needs every seed: others
 * may have been left out. With a seed that is not finite it is a gap: a mean would flatter. */
function bandsOf(curves, against, isGeometric) {
  return Object.values(Object.groupBy(curves, ({ variant }) => variant)).map((seeds) => {
    const at = Map.groupBy(
      seeds.flatMap(({ points }) => points),
      ({ x }) => x,
    );
    const points = [...at]
      .filter(([, same]) => against === "depth" || same.length === seeds.length)
      .sort(([a], [b]) => a - b)
      .map(([x, same]) => {
        const [ys, run] = [same.map(({ y }) => y), same[0].run];
        // One that is NaN makes all of them NaN.
        const [low, high] = [Math.min(...ys), Math.max(...ys)];
        return { x, y: meanOf(ys, isGeometric), low, high, n: ys.length, run };
      });
    return { ...seeds[0], seed: null, points };
  });
}

/** What is drawn: a curve for each seed, or a band for each variant. */
function linesOf(study, view) {
  const { metric, values, seeds, against, hidden } = view;
  const own = curvesOf(study, view);
  const all = values === "own" ? own : compared(own, study.plain, values);
  const shown = all.filter(({ variant }) => !hidden.has(variant));
  const isGeometric = metric.log && values !== "difference";
  return seeds === "band" ? bandsOf(shown, against, isGeometric) : shown;
}

function inDigits(number) {
  return String(Number(number.toPrecision(DIGITS)));
}

/** A field of a CSV. */
function field(text) {
  return /[",\n]/.test(text) ? `"${String(text).replaceAll('"', '""')}"` : String(text);
}

/** The numbers of the lines as CSV; gaps are left out. */
function csvOf(lines, { study, against, metric, values, seeds, platform }, plain) {
  const isBand = seeds === "band";
  const related = values === "own" ? "as measured" : `${values} to ${plain}`;
  const numbers = isBand ? ["seeds", "mean", "low", "high"] : ["seed", "value"];
  const head = ["study", "platform", "metric", "values", "variant", "depth"];
  const rows = lines.flatMap(({ variant, seed, points }) =>
    points
      .filter(({ y }) => !Number.isNaN(y))
      .map(({ x, y, low, high, n, run }) => [
        ...[study, platform, metric.name, related, variant, run.depth],
        ...(against === "step" ? [x] : []),
        ...(isBand ? [n, ...[y, low, high].map(inDigits)] : [seed, inDigits(y)]),
      ]),
  );
  const all = [[...head, ...(against === "step" ? ["step"] : []), ...numbers], ...rows];
  return all.map((row) => `${row.map(field).join(",")}\n`).join("");
}

// --- explorer: drawing --------------------------------------------------------------------------

const [INK, QUIET, GRID] = ["#1d2126", "#555555", "#e6e8eb"];
const [CROSS, DOT] = [15, 7];
const [OPACITY, FAINT] = ["33", "14"]; // of a band, in hexadecimal: fainter where there are many
const MANY = 6;
const WIDE = 16; // depths of this ratio or more are drawn on a logarithmic axis

/** How plotly calls the line that SVG calls so. */
function dashOf({ dash }) {
  return dash === "none" ? "solid" : dash;
}

/** What pointing at a point says of its number. */
function numberAt({ y, low, high, n }) {
  if (n === undefined) return inDigits(y);
  return `mean ${inDigits(y)} of ${n}, ${inDigits(low)} to ${inDigits(high)}`;
}

/** One line. A point between gaps, which no line reaches, is a dot. */
function traceOf({ variant, seed, points }, look, { metric, against }) {
  const isGap = (i) => Number.isNaN(points[i]?.y ?? NaN);
  const isDotted = against === "depth" || metric.sparse;
  const seedWords = seed === null ? "" : `, seed ${seed}`;
  return {
    x: points.map(({ x }) => x),
    y: points.map(({ y }) => (Number.isNaN(y) ? null : y)),
    text: points.map(numberAt),
    customdata: points.map(({ run }) => keyOf(run)),
    name: variant,
    mode: "lines+markers",
    line: { color: look.colour, dash: dashOf(look), width: 1.6 },
    marker: {
      color: look.colour,
      opacity: 1,
      line: { width: 0 },
      size: points.map((_, i) => (isDotted || (isGap(i - 1) && isGap(i + 1)) ? DOT : 0)),
    },
    connectgaps: false,
    hovertemplate: `${against} %{x}<br>%{text}<extra>${look.label}${seedWords}</extra>`,
  };
}

/** The range over seeds: a polygon for each stretch without a gap. */
function areaOf({ points }, { colour }, isOneOfMany) {
  const stretches = [[]];
  for (const point of points) {
    if (Number.isNaN(point.y)) stretches.push([]);
    else stretches.at(-1).push(point);
  }
  const corners = stretches.flatMap((stretch) => [
    ...stretch.map(({ x, high }) => [x, high]),
    ...stretch.toReversed().map(({ x, low }) => [x, low]),
    [null, null],
  ]);
  return {
    x: corners.map(([x]) => x),
    y: corners.map(([, y]) => y),
    mode: "lines",
    line: { width: 0 },
    fill: "toself",
    fillcolor: colour + (isOneOfMany ? FAINT : OPACITY),
    hoverinfo: "skip",
  };
}

/** A dotted line over the whole axis, named at its end. */
function levelOf(level, words, [first, last]) {
  return {
    x: [first, last],
    y: [level, level],
    text: ["", words],
    mode: "lines+text",
    textposition: "top left",
    textfont: { color: QUIET },
    line: { color: QUIET, dash: "dot", width: 1.5 },
    hoverinfo: "skip",
  };
}

/** Ticks of a logarithmic axis: at 1, 2 and 5 of a few decades, else as plotly finds them. */
function ticksOf(traces) {
  const values = traces.flatMap(({ y }) => y.filter((value) => value > 0));
  const decades = Math.log10(Math.max(...values) / Math.min(...values));
  return { tickformat: "~g", ...(decades > 0.5 && decades < 3 ? { dtick: "D2" } : {}) };
}

/** The axis of steps, or of depths, which are marked one by one. */
function acrossOf(against, depths, last, unit) {
  const common = { gridcolor: GRID, zeroline: false };
  const title = (text) => ({ text, font: { size: 13 }, standoff: 8 });
  if (against === "step") {
    return { ...common, title: title("step"), type: "linear", range: [-0.02 * last, 1.02 * last] };
  }
  const type = depths.at(-1) >= WIDE * depths[0] ? "log" : "linear";
  return { ...common, title: title(`${unit}s`), type, tickvals: depths, ticktext: depths.map(String) };
}

/** Where runs stopped being finite: one entry for each variant, place and reason, with its seeds. */
function breakdowns(runs, looks, against, unit) {
  const found = new Map();
  for (const { variant, seed, depth, broken } of runs.filter((run) => run.broken)) {
    const where = against === "depth" ? ` at ${countOf(depth, unit)}` : "";
    const what = `${broken.what} not finite from step ${broken.step}`;
    const key = `${looks[variant].label}${where}: ${what}`;
    const x = against === "depth" ? depth : broken.step;
    if (!found.has(key)) found.set(key, { variant, x, seeds: [] });
    found.get(key).seeds.push(seed);
  }
  return [...found].map(([key, entry]) => ({
    ...entry,
    words: `${key} (${entry.seeds.length > 1 ? "seeds" : "seed"} ${entry.seeds.join(", ")})`,
  }));
}

/** A cross above the panel. Crosses at the same place stand above each other. */
function crosses(broken, looks, { type }) {
  const heights = new Map();
  return broken.map(({ variant, x, words }) => {
    const height = heights.get(x) ?? 0;
    heights.set(x, height + 1);
    return {
      x: type === "log" ? Math.log10(x) : x, // plotly wants it so
      y: 1,
      yref: "paper",
      yanchor: "bottom",
      yshift: CROSS * height,
      text: "<b>✕</b>",
      font: { color: looks[variant].colour, size: CROSS },
      hovertext: words,
      showarrow: false,
    };
  });
}

function layoutOf(across, upright, annotations) {
  const above = Math.max(0, ...annotations.map((cross) => cross.yshift + CROSS));
  return {
    margin: { l: 70, r: 20, t: 24 + above, b: 50 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: 13, color: INK },
    autosize: true,
    hovermode: "closest",
    showlegend: false,
    // On a touch screen a finger scrolls the page.
    dragmode: window.matchMedia("(pointer: coarse)").matches ? false : "zoom",
    xaxis: across,
    yaxis: { ...upright, gridcolor: GRID, zeroline: false, automargin: true },
    annotations,
  };
}

// --- explorer: controls -------------------------------------------------------------------------

const DOUBLE_CLICK = 500;

/** What is as at first again when the reader changes something else. */
const RESET = {
  study: ["metric", "depth", "platform", "axis", "hidden", "run"],
  against: ["metric", "depth", "axis", "run"],
  metric: ["axis"],
  values: ["axis"],
};

/** What names a run within its study, on its platform. */
function keyOf({ depth, variant, seed }) {
  return `${depth}/${variant}/${seed}`;
}

function optionOf([value, words]) {
  const option = element("option", words);
  option.value = value;
  return option;
}

/** What may be chosen; what stood there before stays if it is the same. */
function offer(select, options) {
  const now = [...select.options].map((option) => [option.value, option.text]);
  if (JSON.stringify(now) === JSON.stringify(options)) return;
  select.replaceChildren(...options.map(optionOf));
}

/** The entry of a variant in the legend. */
function entryOf([name, { label, colour, dash }], card, swatch) {
  const entry = swatch.content.firstElementChild.cloneNode(true);
  entry.querySelector("label").title = `${name}: ${toldOf(card).join("; ")}`;
  entry.querySelector("label").append(label);
  entry.querySelector("input").name = name;
  entry.querySelector("path").setAttribute("stroke", colour);
  entry.querySelector("path").setAttribute("stroke-dasharray", dash);
  const only = entry.querySelector("button");
  only.dataset.only = name;
  only.setAttribute("aria-label", `only ${label}`);
  return entry;
}

/** The address says what is shown; a reader's choice is written there, and shown from there. */
class Explorer {
  constructor(section) {
    this.section = section;
    this.form = section.querySelector("form");
    this.run = section.querySelector("[name=run]");
    this.plot = section.querySelector(".plot");
    this.controls = Object.fromEntries([...this.form.elements].map((one) => [one.name, one]));
    this.controls.run = this.run;
    this.studies = new Map();
    for (const control of Object.values(this.controls)) {
      control.addEventListener("change", () => {
        this.remember({ reset: RESET[control.name] });
        this.show();
      });
    }
    section.querySelector("[data-csv]").addEventListener("click", () => this.download());
    section.querySelector("[data-card]").addEventListener("click", () => {
      openCard(this.view.study, this.chosen.variant);
    });
    this.setUpLegend();
  }

  setUpLegend() {
    const legend = this.section.querySelector(".legend");
    const choose = (isChecked, isStep = true) => {
      for (const box of this.boxes) box.checked = isChecked(box);
      this.remember({ isStep });
      this.show();
    };
    let last = {};
    legend.addEventListener("change", ({ target, timeStamp }) => {
      const isDouble = target === last.target && timeStamp - last.timeStamp < DOUBLE_CLICK;
      last = { target, timeStamp };
      choose((box) => box.checked, !isDouble);
    });
    legend.addEventListener("click", ({ target }) => {
      if (!(target instanceof HTMLButtonElement)) return;
      const { all, only } = target.dataset;
      choose((box) => all !== undefined || box.name === only);
    });
    // Its two clicks have switched the variant off and on, which was one step already.
    legend.addEventListener("dblclick", ({ target }) => {
      const only = target.closest("label")?.querySelector("input").name;
      if (only !== undefined) choose((box) => box.name === only, false);
    });
  }

  get boxes() {
    return [...this.section.querySelectorAll(".legend input")];
  }

  /** What is shown, as the controls have it. */
  get view() {
    const chosen = Object.entries(this.controls).map(([name, { value }]) => [name, value]);
    const off = this.boxes.filter((box) => !box.checked).map(({ name }) => name);
    const view = { ...Object.fromEntries(chosen), hidden: new Set(off) };
    const metrics = this.study.metrics[view.against];
    return { ...view, metric: metrics.find(({ name }) => name === view.metric) };
  }

  /** The run whose command is told; undefined where none is shown. */
  get chosen() {
    const { platform } = this.view;
    const runs = this.study.runs.filter((run) => run.platform === platform);
    return runs.find((run) => keyOf(run) === this.run.value);
  }

  /** A study's numbers, read once. */
  load(name) {
    if (!this.studies.has(name)) {
      const data = this.section.querySelector(`script[data-study="${name}"]`);
      this.studies.set(name, unpacked(data.textContent).then(studyOf));
    }
    return this.studies.get(name);
  }

  /** Show what the address asks for. What it does not name, or names wrongly, is as at first. */
  async show() {
    this.choose("study", this.controls.study.options[0].value);
    const name = this.controls.study.value;
    try {
      const [study, { studies }] = await Promise.all([
        this.load(name),
        variantCards(),
        loadPlotly(),
      ]);
      if (name !== this.controls.study.value) return; // asked for another one meanwhile
      this.study = study;
      this.cards = studies[name];
      this.fill();
      this.draw();
    } catch (error) {
      this.plot.textContent = `Curves cannot be drawn here: ${error.message}`;
    }
  }

  /** Set a control to what the address asks for, if it has that. */
  choose(name, usual) {
    const [control, wanted] = [this.controls[name], address.settings.get(name)];
    const isThere = [...control.options].some((option) => option.value === wanted);
    control.value = isThere && !control.disabled ? wanted : usual;
    control.dataset.usual = usual;
  }

  /** Offer what the study has, and choose from it. */
  fill() {
    const { metrics, runs, variants, plain } = this.study;
    const { against, metric, depth, platform, values, axis } = this.controls;
    this.choose("against", "step");
    offer(metric, metrics[against.value].map(({ name, label }) => [name, label]));
    this.choose("metric", metrics[against.value][0].name);
    const depths = [...new Set(runs.map((run) => run.depth))].sort((a, b) => a - b);
    offer(depth, depths.map((layers) => [String(layers), String(layers)]));
    this.choose("depth", String(commonDepth(runs)));
    depth.parentElement.hidden = against.value === "depth";
    offer(platform, Object.entries(this.study.platforms));
    this.choose("platform", runs[0].platform);
    this.choose("seeds", "each");
    values.disabled = plain === null;
    this.choose("values", "own");
    axis.disabled = values.value === "difference"; // which may be negative
    const { log } = metrics[against.value].find(({ name }) => name === metric.value);
    this.choose("axis", log && !axis.disabled ? "log" : "linear");
    this.fillLegend(variants);
    const hidden = new Set(address.settings.getAll("hidden"));
    for (const box of this.boxes) box.checked = !hidden.has(box.name);
    this.fillRuns();
  }

  fillLegend(variants) {
    const entries = this.section.querySelector(".entries");
    if (this.boxes.map(({ name }) => name).join() === Object.keys(variants).join()) return;
    const swatch = this.section.querySelector("template");
    const all = Object.entries(variants);
    entries.replaceChildren(...all.map((one) => entryOf(one, this.cards[one[0]], swatch)));
  }

  /** Offer the runs that are shown. */
  fillRuns() {
    const { view } = this;
    const shown = this.study.runs.filter((run) => isHere(run, view) && !view.hidden.has(run.variant));
    const called = ({ variant, depth, seed }) =>
      `${this.study.variants[variant].label}, ${countOf(depth, this.study.depth_unit)}, seed ${seed}`;
    offer(this.run, shown.map((run) => [keyOf(run), called(run)]));
    this.choose("run", this.run.options[0]?.value ?? "");
    this.section.querySelector(".run").hidden = !shown.length;
  }

  /** Write what is shown into the address, but for what is as at first, or is `reset`. */
  remember({ reset = [], isStep = true }) {
    const settings = new URLSearchParams();
    for (const [name, { value, dataset }] of Object.entries(this.controls)) {
      if (value !== dataset.usual && !reset.includes(name)) settings.append(name, value);
    }
    const off = reset.includes("hidden") ? [] : this.boxes.filter((box) => !box.checked);
    for (const { name } of off) settings.append("hidden", name);
    address.write({ settings, isStep });
  }

  draw() {
    const { study, view } = this;
    const { metric, against, axis, values } = view;
    const lines = linesOf(study, view);
    const looks = study.variants;
    const bands = view.seeds === "band" ? lines : [];
    const isMany = bands.length >= MANY;
    const areas = bands.map((line) => areaOf(line, looks[line.variant], isMany));
    const own = lines.map((line) => traceOf(line, looks[line.variant], view));
    const here = study.runs.filter((run) => isHere(run, view));
    const shown = here.filter(({ variant }) => !view.hidden.has(variant));
    const last = Math.max(1, ...shown.map(({ steps }) => steps.at(-1)));
    const depths = [...new Set(here.map(({ depth }) => depth))].sort((a, b) => a - b);
    const across = acrossOf(against, depths, last, study.depth_unit);
    const [level, words] = this.levelIn(view);
    const ends = against === "step" ? [0, last] : [depths[0], depths.at(-1)];
    const levels = level === null ? [] : [levelOf(level, words, ends)];
    const traces = [...areas, ...own, ...levels];
    const broken = breakdowns(shown, looks, against, study.depth_unit);
    const related = values === "own" ? "" : `<br>${values} to ${looks[study.plain].label}`;
    const upright = {
      title: { text: metric.title + related, font: { size: 13 } },
      type: axis,
      ...(axis === "log" ? ticksOf(traces) : { exponentformat: "power" }),
    };
    const layout = layoutOf(across, upright, crosses(broken, looks, across));
    const options = { responsive: true, displaylogo: false, displayModeBar: false };
    Plotly.react(this.plot, traces, layout, options);
    this.plot.removeAllListeners("plotly_click");
    this.plot.on("plotly_click", ({ points: [{ customdata }] }) => this.choosePoint(customdata));
    this.plot.setAttribute("aria-label", `${metric.label} against ${against}: ${own.length} curves`);
    this.note(here, lines, shown, broken);
    this.tellRun();
  }

  /** The level that lines are read against, and what it is; null without one. */
  levelIn({ values, against, metric }) {
    if (values !== "own") return [values === "ratio" ? 1 : 0, "plain"];
    return [this.study.chance[against][metric.name] ?? null, "chance level"];
  }

  choosePoint(run) {
    if (run === undefined) return;
    this.run.value = run;
    this.remember({});
    this.tellRun();
  }

  /** What the lines cannot say: who has none, and why. */
  note(here, lines, shown, broken) {
    const without = (having, others) => {
      const has = new Set(having.map(({ variant }) => variant));
      return [...new Set(others)].filter((variant) => !has.has(variant));
    };
    const called = (names) => names.map((name) => this.study.variants[name].label).join(", ");
    const notes = broken.map(({ words }) => `✕ ${words}`);
    const absent = without(here, Object.keys(this.study.variants));
    if (absent.length) notes.push(`Not run here: ${called(absent)}`);
    const drawn = lines.filter(({ points }) => points.some(({ y }) => !Number.isNaN(y)));
    const broke = shown.filter((run) => run.broken);
    const lacking = without([...drawn, ...broke], shown.map(({ variant }) => variant));
    if (lacking.length) notes.push(`Without these values: ${called(lacking)}`);
    const list = this.section.querySelector(".notes");
    list.replaceChildren(...notes.map((words) => element("li", words)));
  }

  /** The command that makes the chosen run, and what is known of how it was made. */
  tellRun() {
    const { chosen } = this;
    if (!chosen) return;
    const { config, trains } = this.form.dataset;
    const axes = ["depth", "variant", "backend", "seed"].map((axis) => `--${axis} ${chosen[axis]}`);
    const more = trains === undefined ? " --set train=true" : "";
    const command = `fathom train ${this.view.study} ${axes.join(" ")} --config ${config}${more}`;
    this.section.querySelector(".run code").textContent = command;
    this.section.querySelector(".reason").textContent = chosen.reason;
  }

  download() {
    const { study, view } = this;
    const text = csvOf(linesOf(study, view), view, study.plain);
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
    link.download = `${view.study}-${view.metric.name}-${view.against}.csv`;
    link.click();
    URL.revokeObjectURL(link.href);
  }
}

/** Plotly, run once, when it is first needed. */
function loadPlotly() {
  loadPlotly.done ??= unpacked(document.querySelector("#plotly").textContent).then((bytes) => {
    document.head.append(element("script", textOf(bytes)));
  });
  return loadPlotly.done;
}

/** The explorer reads and draws when it is about to be seen. Gives a function that shows what the
 * address asks for. */
function setUpExplorer() {
  const section = document.querySelector(".explorer");
  if (!section) return () => {};
  let explorer;
  const seen = new IntersectionObserver(
    (entries) => {
      if (!entries.some((entry) => entry.isIntersecting)) return;
      seen.disconnect();
      explorer = new Explorer(section);
      explorer.show();
    },
    { rootMargin: "400px" },
  );
  seen.observe(section);
  return () => explorer?.show();
}

setUpContents();
for (const table of document.querySelectorAll("main table")) {
  if (isOfAnswers(table)) table.classList.add("answers");
  else {
    setUpCards(table);
    setUpTable(table);
    setUpFilter(table);
    setUpFold(table);
  }
}
setUpFigures();
setUpEvidence();
setUpAddress(setUpExplorer());
// Not before the page is seen.
requestAnimationFrame(() => setTimeout(() => drawFigures().then(setUpVariants)));
