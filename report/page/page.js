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

/** The fragment: #anchor, or #anchor?study.depth=…&study.hidden=… where curves show other things
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

  /** Browsers find no anchor that settings follow. */
  go() {
    if (location.hash.includes("?")) placeOf(this.anchor)?.scrollIntoView();
  },
};

function setUpAddress(plots) {
  address.go();
  window.addEventListener("hashchange", () => {
    for (const plot of plots) plot.show();
    // Where the reader went back, the browser has scrolled; this one was typed.
    if (!history.state?.isOurs) address.go();
  });
  // A link to a place of the page would drop what curves show.
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#']");
    if (!link || isSpecial(event) || !location.hash.includes("?")) return;
    event.preventDefault();
    address.write({ anchor: link.hash.slice(1), isStep: true });
    address.go();
  });
}

// --- contents -----------------------------------------------------------------------------------

function setUpContents() {
  const nav = document.querySelector("#contents");
  const button = document.querySelector("header button");
  const show = (open) => button.setAttribute("aria-expanded", String(open));
  button.addEventListener("click", () => show(button.getAttribute("aria-expanded") === "false"));
  nav.addEventListener("click", (event) => {
    if (event.target.closest("a")) show(false);
  });

  // The section that is read is the last one whose top is above the middle of the screen.
  const sections = [...document.querySelectorAll("main > section")];
  const links = new Map(
    sections.map((section) => [section, nav.querySelector(`a[href="#${section.id}"]`)]),
  );
  const isAbove = (place) => place.getBoundingClientRect().top < window.innerHeight / 2;
  const mark = () => {
    const read = sections.findLast(isAbove);
    for (const [section, link] of links) {
      link.toggleAttribute("aria-current", section === read);
      link.parentElement.classList.toggle("current", section === read);
    }
  };
  // The address keeps the place that it names while that is in sight, then names the one read.
  const places = [...nav.querySelectorAll("a")].map((link) => placeOf(link.hash.slice(1)));
  const keepPlace = () => {
    const named = placeOf(address.anchor)?.getBoundingClientRect().top;
    if (named >= 0 && named < window.innerHeight) return;
    const read = places.findLast(isAbove);
    if (read) address.write({ anchor: read.id });
  };
  let pause;
  nav.classList.add("marked");
  document.addEventListener(
    "scroll",
    () => {
      mark();
      clearTimeout(pause); // browsers refuse an address that changes too often
      pause = setTimeout(keepPlace, PAUSE);
    },
    { passive: true },
  );
  mark();
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

/** On a phone a table of words becomes cards, a row each, with the verdict right below its name;
 * one of numbers scrolls, and its first column stays. Style sheets know the rest. */
function setUpCards(table) {
  const heads = [...(table.tHead?.rows[0].cells ?? [])];
  const titles = heads.map((head) => head.textContent.trim());
  const isOfWords = heads.every((head) => head.style.textAlign !== "right");
  const isWide = heads.length > 2;
  const judges = titles.some((title) => title.includes("verdict"));
  if (!judges && !(isOfWords && isWide)) return;
  table.classList.add("cards");
  for (const row of table.tBodies[0]?.rows ?? []) {
    [...row.cells].forEach((cell, i) => {
      cell.dataset.title = titles[i];
    });
  }
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

/** A link to a line of a table opens that row here: no browser shows a line of a CSV. */
function setUpEvidence() {
  const dialog = document.querySelector("dialog.evidence");
  const [title, words, body] = ["h2", "p", "tbody"].map((name) => dialog.querySelector(name));
  let tables; // read when it is first asked for
  const show = (name, line) => {
    tables ??= JSON.parse(dialog.querySelector("script").textContent);
    const table = tables[name];
    const row = table?.rows[line];
    if (!row) return false;
    const all = table.columns.map((column, i) => [column, row[i]]);
    const filled = all.filter(([, value]) => value !== "");
    const of = table.naming
      .map((column) => [column, row[table.columns.indexOf(column)]])
      .filter(([, value]) => value !== "");
    // A number alone would not say of what.
    const said = of.map(([column, value]) => (/^\d/.test(value) ? `${column} ${value}` : value));
    title.textContent = `${name}: ${said.join(", ")}`;
    const empty = all.length - filled.length;
    words.textContent =
      `Line ${line} of tables/${name}` +
      (empty ? `, without the ${empty} columns that are empty there.` : ".");
    body.replaceChildren(
      ...filled.map(([column, value]) => {
        const line = document.createElement("tr");
        const head = element("th", column);
        head.scope = "row";
        line.append(head, element("td", value));
        return line;
      }),
    );
    dialog.showModal();
    dialog.scrollTop = 0;
    return true;
  };
  document.querySelector("main").addEventListener("click", (event) => {
    const href = event.target.closest("a")?.getAttribute("href");
    const [, name, line] = /^tables\/([\w-]+\.csv)#L(\d+)$/.exec(href) ?? [];
    // With a key held, the reader asks for the file in a tab of its own.
    if (!name || isSpecial(event)) return;
    if (show(name, line)) event.preventDefault();
  });
  closeOutside(dialog);
}

// --- curves -------------------------------------------------------------------------------------

const [INK, CHANCE, GRID] = ["#1d2126", "#555555", "#e6e8eb"];
const [CROSS, DOT] = [15, 7];
const DOUBLE_CLICK = 500;
const ARRAYS = { f4: Float32Array, f8: Float64Array };

/** The bytes of base64. */
function bytesOf(text) {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

/** The text of an element that was packed: compressed, in base64. */
function unpacked(element) {
  const packed = new Blob([bytesOf(element.textContent)]).stream();
  return new Response(packed.pipeThrough(new DecompressionStream("gzip"))).text();
}

/** Numbers that were written in base64: first bytes first, then second ones. NaN is a gap. */
function decoded({ dtype, bytes }) {
  const [columns, size] = [bytesOf(bytes), ARRAYS[dtype].BYTES_PER_ELEMENT];
  const count = columns.length / size;
  const raw = new Uint8Array(columns.length);
  columns.forEach((byte, i) => {
    raw[(i % count) * size + Math.floor(i / count)] = byte;
  });
  return [...new ARRAYS[dtype](raw.buffer)];
}

/** How plotly calls the line that SVG calls so. */
function dashOf({ dash }) {
  return dash === "none" ? "solid" : dash;
}

/** The line of one run. A point between gaps, which no line reaches, is a dot. */
function lineOf(run, metric, look) {
  let points = decoded(run.values[metric.name]).map((value, i) => ({ step: run.steps[i], value }));
  if (metric.sparse) points = points.filter(({ value }) => !Number.isNaN(value));
  const isGap = (i) => Number.isNaN(points[i]?.value ?? NaN);
  return {
    x: points.map(({ step }) => step),
    y: points.map(({ value }) => (Number.isNaN(value) ? null : value)),
    text: points.map(({ value }) => String(value)),
    name: run.variant,
    mode: "lines+markers",
    line: { color: look.colour, dash: dashOf(look), width: 1.6 },
    marker: {
      color: look.colour,
      opacity: 1,
      line: { width: 0 },
      size: points.map((_, i) => (metric.sparse || (isGap(i - 1) && isGap(i + 1)) ? DOT : 0)),
    },
    connectgaps: false,
    hovertemplate: `step %{x}<br>%{text}<extra>${look.label}, seed ${run.seed}</extra>`,
  };
}

/** A dotted line over all steps, named at its end. */
function lineAtChance(level, last) {
  return {
    x: [0, last],
    y: [level, level],
    text: ["", "chance level"],
    mode: "lines+text",
    textposition: "top left",
    textfont: { color: CHANCE },
    line: { color: CHANCE, dash: "dot", width: 1.5 },
    hoverinfo: "skip",
  };
}

/** Ticks of a logarithmic axis: at 1, 2 and 5 of a few decades, else as plotly finds them. */
function ticksOf(traces) {
  const values = traces.flatMap(({ y }) => y.filter((value) => value > 0));
  const decades = Math.log10(Math.max(...values) / Math.min(...values));
  return { tickformat: "~g", ...(decades > 0.5 && decades < 3 ? { dtick: "D2" } : {}) };
}

/** Where runs stopped being finite: one entry for each variant, step and reason, with its seeds. */
function breakdowns(runs, looks) {
  const found = new Map();
  for (const { variant, seed, broken } of runs.filter((run) => run.broken)) {
    const key = `${looks[variant].label}: ${broken.what} not finite from step ${broken.step}`;
    if (!found.has(key)) found.set(key, { variant, step: broken.step, seeds: [] });
    found.get(key).seeds.push(seed);
  }
  return [...found].map(([key, entry]) => ({
    ...entry,
    words: `${key} (${entry.seeds.length > 1 ? "seeds" : "seed"} ${entry.seeds.join(", ")})`,
  }));
}

/** A cross above the panel. Crosses at the same step stand above each other. */
function crosses(broken, looks) {
  const heights = new Map();
  return broken.map(({ variant, step, words }) => {
    const height = heights.get(step) ?? 0;
    heights.set(step, height + 1);
    return {
      x: step,
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

class Plot {
  constructor(figure, data) {
    this.figure = figure;
    this.data = data;
    this.form = figure.querySelector("form");
    this.boxes = [...figure.querySelectorAll(".legend input")];
    this.first = { depth: this.form.depth.value, platform: this.form.platform.value };
    this.first.metric = this.form.metric.value;
    this.form.addEventListener("change", (event) => {
      if (event.target.name === "metric") this.form.axis.value = this.usualAxis;
      this.draw();
      this.remember();
    });
    this.setUpLegend();
    this.show();
  }

  setUpLegend() {
    const legend = this.figure.querySelector(".legend");
    const choose = (isChecked, isStep = true) => {
      for (const box of this.boxes) box.checked = isChecked(box);
      this.draw();
      this.remember(isStep);
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

  get metric() {
    return this.data.metrics[this.form.metric.value];
  }

  /** A metric comes with the axis that the figures have for it. */
  get usualAxis() {
    return this.metric.log ? "log" : "linear";
  }

  key(name) {
    return `${this.figure.dataset.study}.${name}`;
  }

  /** What the address asks for. What it does not name, or names wrongly, is as at first. */
  show() {
    const choose = (name, usual) => {
      const [control, wanted] = [this.form[name], address.settings.get(this.key(name))];
      const isThere = [...control.options].some((option) => option.value === wanted);
      control.value = isThere ? wanted : usual;
    };
    for (const [name, usual] of Object.entries(this.first)) choose(name, usual);
    choose("axis", this.usualAxis);
    const hidden = new Set(address.settings.getAll(this.key("hidden")));
    for (const box of this.boxes) box.checked = !hidden.has(box.name);
    this.draw();
  }

  /** Write what is shown into the address, if it is not what is shown at first. */
  remember(isStep = true) {
    const usual = { ...this.first, axis: this.usualAxis };
    const own = [...Object.keys(usual), "hidden"].map((name) => this.key(name));
    const others = [...address.settings].filter(([key]) => !own.includes(key));
    const settings = new URLSearchParams(others);
    for (const [name, value] of Object.entries(usual)) {
      if (this.form[name].value !== value) settings.append(this.key(name), this.form[name].value);
    }
    for (const { name } of this.boxes.filter((box) => !box.checked)) {
      settings.append(this.key("hidden"), name);
    }
    address.write({ settings, isStep });
  }

  draw() {
    const { depth, platform, axis } = this.form;
    const metric = this.metric;
    const on = new Set(this.boxes.filter((box) => box.checked).map((box) => box.name));
    const here = this.data.runs.filter(
      (run) => run.depth === Number(depth.value) && run.platform === platform.value,
    );
    const shown = here.filter((run) => on.has(run.variant));
    const drawn = shown.filter((run) => metric.name in run.values);
    const traces = drawn.map((run) => lineOf(run, metric, this.data.variants[run.variant]));
    const level = this.data.chance[metric.name];
    const last = Math.max(1, ...shown.flatMap((run) => run.steps.slice(-1)));
    if (level !== undefined) traces.push(lineAtChance(level, last));
    const broken = breakdowns(shown, this.data.variants);
    this.note(here, drawn, shown, broken);
    const annotations = crosses(broken, this.data.variants);
    const above = Math.max(0, ...annotations.map((cross) => cross.yshift + CROSS));
    Plotly.react(
      this.figure.querySelector(".plot"),
      traces,
      {
        margin: { l: 70, r: 20, t: 24 + above, b: 50 },
        paper_bgcolor: "rgba(0,0,0,0)",
        plot_bgcolor: "rgba(0,0,0,0)",
        font: { family: "system-ui, sans-serif", size: 13, color: INK },
        autosize: true,
        hovermode: "closest",
        showlegend: false,
        // On a touch screen a finger scrolls the page.
        dragmode: window.matchMedia("(pointer: coarse)").matches ? false : "zoom",
        xaxis: {
          title: { text: "step", font: { size: 13 }, standoff: 8 },
          range: [-0.02 * last, 1.02 * last],
          gridcolor: GRID,
          zeroline: false,
        },
        yaxis: {
          title: { text: metric.title, font: { size: 13 } },
          type: axis.value,
          ...(axis.value === "log" ? ticksOf(traces) : { exponentformat: "power" }),
          gridcolor: GRID,
          zeroline: false,
          automargin: true,
        },
        annotations,
      },
      { responsive: true, displaylogo: false, displayModeBar: false },
    );
  }

  /** What the lines cannot say: who has none, and why. */
  note(here, drawn, shown, broken) {
    const without = (runs, others) => {
      const having = new Set(runs.map((run) => run.variant));
      return [...new Set(others)].filter((variant) => !having.has(variant));
    };
    const called = (names) => names.map((name) => this.data.variants[name].label).join(", ");
    const lines = broken.map(({ words }) => `✕ ${words}`);
    const absent = without(here, Object.keys(this.data.variants));
    if (absent.length) lines.push(`Not run here: ${called(absent)}`);
    const broke = shown.filter((run) => run.broken);
    const lacking = without([...drawn, ...broke], shown.map((run) => run.variant));
    if (lacking.length) lines.push(`Without this metric: ${called(lacking)}`);
    this.figure.querySelector(".notes").replaceChildren(
      ...lines.map((line) => {
        const item = document.createElement("li");
        item.textContent = line;
        return item;
      }),
    );
  }
}

/** Plotly, run once, when it is first needed. */
function loadPlotly() {
  loadPlotly.done ??= unpacked(document.querySelector("#plotly")).then((text) => {
    document.head.append(element("script", text));
  });
  return loadPlotly.done;
}

async function drawCurves(figure, plots) {
  try {
    const packed = figure.querySelector("script");
    const [text] = await Promise.all([unpacked(packed), loadPlotly()]);
    plots.push(new Plot(figure, JSON.parse(text)));
  } catch (error) {
    figure.querySelector(".plot").textContent = `Curves cannot be drawn here: ${error.message}`;
  }
}

/** Curves are drawn when they are about to be seen: a page may have dozens. Gives those drawn. */
function setUpCurves() {
  const plots = [];
  const seen = new IntersectionObserver(
    (entries) => {
      for (const { target } of entries.filter((entry) => entry.isIntersecting)) {
        seen.unobserve(target);
        drawCurves(target, plots);
      }
    },
    { rootMargin: "400px" },
  );
  for (const figure of document.querySelectorAll(".curves")) seen.observe(figure);
  return plots;
}

setUpContents();
for (const table of document.querySelectorAll("main table")) {
  setUpCards(table);
  setUpTable(table);
}
setUpFigures();
setUpEvidence();
setUpAddress(setUpCurves());
