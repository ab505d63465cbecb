"use strict";

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
  const mark = () => {
    const read = sections.findLast(
      (section) => section.getBoundingClientRect().top < window.innerHeight / 2,
    );
    for (const [section, link] of links) {
      link.toggleAttribute("aria-current", section === read);
      link.parentElement.classList.toggle("current", section === read);
    }
  };
  nav.classList.add("marked");
  document.addEventListener("scroll", mark, { passive: true });
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
    if (!name || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    if (show(name, line)) event.preventDefault();
  });
  closeOutside(dialog);
}

// --- curves -------------------------------------------------------------------------------------

const [INK, CHANCE, GRID] = ["#1d2126", "#555555", "#e6e8eb"];
const [CROSS, DOT] = [15, 7];
const ARRAYS = { f4: Float32Array, f8: Float64Array };

/** Numbers that were written as bytes in base64. NaN is a gap. */
function decoded({ dtype, bytes }) {
  const raw = Uint8Array.from(atob(bytes), (character) => character.charCodeAt(0));
  return [...new ARRAYS[dtype](raw.buffer)];
}

/** The line of one run. A point between gaps, which no line reaches, is a dot. */
function lineOf(run, metric, colour) {
  let points = decoded(run.values[metric.name]).map((value, i) => ({ step: run.steps[i], value }));
  if (metric.sparse) points = points.filter(({ value }) => !Number.isNaN(value));
  const isGap = (i) => Number.isNaN(points[i]?.value ?? NaN);
  return {
    x: points.map(({ step }) => step),
    y: points.map(({ value }) => (Number.isNaN(value) ? null : value)),
    text: points.map(({ value }) => String(value)),
    name: run.variant,
    mode: "lines+markers",
    line: { color: colour, width: 1.6 },
    marker: {
      color: colour,
      opacity: 1,
      line: { width: 0 },
      size: points.map((_, i) => (metric.sparse || (isGap(i - 1) && isGap(i + 1)) ? DOT : 0)),
    },
    connectgaps: false,
    hovertemplate: `step %{x}<br>%{text}<extra>${run.variant}, seed ${run.seed}</extra>`,
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
function breakdowns(runs) {
  const found = new Map();
  for (const { variant, seed, broken } of runs.filter((run) => run.broken)) {
    const key = `${variant}: ${broken.what} not finite from step ${broken.step}`;
    if (!found.has(key)) found.set(key, { variant, step: broken.step, seeds: [] });
    found.get(key).seeds.push(seed);
  }
  return [...found].map(([key, entry]) => ({
    ...entry,
    words: `${key} (${entry.seeds.length > 1 ? "seeds" : "seed"} ${entry.seeds.join(", ")})`,
  }));
}

/** A cross above the panel. Crosses at the same step stand above each other. */
function crosses(broken, colours) {
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
      font: { color: colours[variant], size: CROSS },
      hovertext: words,
      showarrow: false,
    };
  });
}

class Plot {
  constructor(figure) {
    this.figure = figure;
    this.form = figure.querySelector("form");
    this.boxes = [...figure.querySelectorAll(".legend input")];
    this.data = JSON.parse(figure.querySelector("script").textContent);
    this.form.addEventListener("change", (event) => {
      if (event.target.name === "metric") this.chooseAxis();
      this.draw();
    });
    figure.querySelector(".legend").addEventListener("change", () => this.draw());
    for (const [name, checked] of [["all", true], ["none", false]]) {
      figure.querySelector(`[data-${name}]`).addEventListener("click", () => {
        for (const box of this.boxes) box.checked = checked;
        this.draw();
      });
    }
    this.chooseAxis();
    this.draw();
  }

  get metric() {
    return this.data.metrics[this.form.metric.value];
  }

  /** A metric comes with the axis that the figures have for it. */
  chooseAxis() {
    this.form.axis.value = this.metric.log ? "log" : "linear";
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
    const broken = breakdowns(shown);
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
    const lines = broken.map(({ words }) => `✕ ${words}`);
    const absent = without(here, Object.keys(this.data.variants));
    if (absent.length) lines.push(`Not run here: ${absent.join(", ")}`);
    const lacking = without([...drawn, ...shown.filter((run) => run.broken)], shown.map((run) => run.variant));
    if (lacking.length) lines.push(`Without this metric: ${lacking.join(", ")}`);
    this.figure.querySelector(".notes").replaceChildren(
      ...lines.map((line) => {
        const item = document.createElement("li");
        item.textContent = line;
        return item;
      }),
    );
  }
}

/** Curves are drawn when they are about to be seen: a page may have dozens. */
function setUpCurves() {
  const seen = new IntersectionObserver(
    (entries) => {
      for (const { target } of entries.filter((entry) => entry.isIntersecting)) {
        seen.unobserve(target);
        new Plot(target);
      }
    },
    { rootMargin: "400px" },
  );
  for (const figure of document.querySelectorAll(".curves")) seen.observe(figure);
}

setUpContents();
document.querySelectorAll("main table").forEach(setUpTable);
setUpFigures();
setUpEvidence();
setUpCurves();
