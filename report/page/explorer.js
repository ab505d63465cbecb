// The explorer: what its form says is the address, and a specification for Vega-Lite.

const form = document.querySelector("#explorer form");
const plot = document.querySelector("#plot");
const RESET = { study: ["metric", "depth", "platform", "axis", "variant"], against: ["metric", "axis"], metric: ["axis"], values: ["axis"] };

/** A study: its variants, platforms and metrics, and the rows of its runs and of their steps. */
async function load(name) {
  const study = JSON.parse(await packed(`study-${name}`));
  const numberOf = (value) => (value === "NaN" ? NaN : value);
  for (const [against, columns] of Object.entries(study.data)) {
    study.data[against] = columns.variant.map((variant, i) => {
      const row = Object.entries(columns).map(([column, values]) => [column, numberOf(values[i])]);
      return { ...Object.fromEntries(row), label: study.variants[variant].label };
    });
  }
  return study;
}

const studies = {};
let shown; // the study, the view and the drawn rows

/** Offer these options; choose the one that the address names, else the usual one. */
function offer(name, options, usual) {
  const select = form.elements[name];
  const asked = new URLSearchParams(location.search).get(name);
  if (options) select.replaceChildren(...options.map(([value, words]) => element("option", words, { value })));
  const values = [...select.options].map(({ value }) => value);
  select.value = values.includes(asked) ? asked : (usual ?? values[0]);
  return select.value;
}

/** The entry of a variant in the legend. */
function entryOf([value, { label, colour, dash }]) {
  const entry = element("label", "", { title: value });
  const line = document.querySelector("#swatch").content.cloneNode(true);
  line.querySelector("path").setAttribute("stroke", colour);
  line.querySelector("path").setAttribute("stroke-dasharray", dash);
  const box = element("input", "", { type: "checkbox", name: "variant", value });
  box.defaultChecked = true;
  entry.append(box, line, label);
  return entry;
}

/** Set the form to what the address says, as far as the study has it. */
function fill(study) {
  const against = offer("against");
  const metrics = study.metrics[against];
  const name = offer("metric", metrics.map(({ name, label }) => [name, label]));
  const metric = metrics.find((one) => one.name === name);
  offer("depth", study.depths.map((depth) => [depth, depth]), study.common_depth);
  form.depth.parentElement.hidden = against === "depth";
  offer("platform", Object.entries(study.platforms));
  offer("seeds");
  form.values.disabled = study.plain === null;
  offer("values", null, "own");
  form.axis.disabled = form.values.value === "difference";
  offer("axis", null, metric.log ? "log" : "linear");
  if (form.axis.disabled) form.axis.value = "linear";
  const list = document.querySelector("#variants");
  if (list.dataset.study !== form.study.value) {
    list.replaceChildren(...Object.entries(study.variants).map(entryOf));
    list.dataset.study = form.study.value;
  }
  const asked = new URLSearchParams(location.search).getAll("variant");
  for (const box of list.querySelectorAll("input")) {
    box.checked = asked.length ? asked.includes(box.value) : box.defaultChecked;
  }
  return metric;
}

/** Where shown variants stopped being finite: one entry for each variant, depth and step. */
function breakdowns(study, { platform, depth, against, variants }) {
  const isHere = (run) => run.platform === platform && (against === "depth" || run.depth === Number(depth));
  const broken = study.data.depth.filter(
    (run) => run.broken !== null && isHere(run) && variants.includes(run.variant),
  );
  const alike = Object.groupBy(broken, (run) => JSON.stringify([run.variant, run.depth, run.broken, run.reason]));
  return Object.values(alike).map((runs) => {
    const [{ label, depth, reason, broken }] = runs;
    const words = `${label}, ${depth} ${study.depth_unit}s: ${reason} not finite from step ${broken}`;
    return { ...runs[0], words: `${words} (seed ${runs.map(({ seed }) => seed).join(", ")})` };
  });
}

/** From rows of runs to the points that are drawn, as transforms of Vega-Lite. */
function transformsOf(study, metric, { against, seeds, values, axis, platform, depth, variants }) {
  const related = { own: "datum.own", ratio: "datum.own / datum.plain", difference: "datum.own - datum.plain" };
  const positive = axis === "log" ? " && datum.y > 0" : "";
  const statistics = { count: "y", valid: "y", mean: "y", min: "y", max: "y", log: "log" };
  const isGeometric = metric.log && values !== "difference";
  const ofSeeds = [
    { calculate: "log(datum.y)", as: "log" },
    {
      aggregate: Object.entries(statistics).map(([as, field]) => ({ op: as === "log" ? "mean" : as, field, as })),
      groupby: ["variant", "label", "depth", against],
    },
    { calculate: `${isGeometric} && datum.min > 0 ? exp(datum.log) : datum.mean`, as: "y" },
    { calculate: "datum.valid === datum.count ? datum.y : NaN", as: "y" },
  ];
  return [
    { filter: { field: "platform", equal: platform } },
    ...(against === "step" ? [{ filter: { field: "depth", equal: Number(depth) } }] : []),
    { calculate: `datum['${metric.name}']`, as: "own" },
    { filter: "datum.own !== null" },
    { calculate: `datum.variant === ${JSON.stringify(study.plain)} ? datum.own : null`, as: "ofPlain" },
    { joinaggregate: [{ op: "max", field: "ofPlain", as: "plain" }], groupby: ["seed", "depth", against] },
    ...(values === "own" ? [] : [{ filter: "isValid(datum.plain)" }]),
    { calculate: related[values], as: "y" },
    { calculate: `isFinite(datum.y)${positive} ? datum.y : NaN`, as: "y" },
    { filter: { field: "variant", oneOf: variants } },
    ...(seeds === "band" ? ofSeeds : []),
  ];
}

/** Curves of a study as a specification for Vega-Lite. */
function specOf(study, metric, view) {
  const { against, seeds, values, axis } = view;
  const names = Object.keys(study.variants);
  const look = (key) => ({
    field: "variant",
    scale: { domain: names, range: names.map((name) => study.variants[name][key]) },
    legend: null,
  });
  const { depths } = study;
  const isWide = depths.at(-1) >= 16 * depths[0];
  const scale = { ...(isWide ? { type: "log" } : { zero: false }), nice: false, padding: 12 };
  const x = {
    step: { field: "step", type: "quantitative", title: "step" },
    depth: { field: "depth", type: "quantitative", title: `${study.depth_unit}s`, axis: { values: depths }, scale },
  }[against];
  const plain = study.variants[study.plain]?.label;
  const beside = { ratio: "ratio to", difference: "difference from" }[values];
  const y = {
    field: "y",
    type: "quantitative",
    title: values === "own" ? metric.label : [metric.label, `${beside} ${plain}`],
    scale: axis === "log" ? { type: "log" } : { zero: false },
    axis: { format: "~g", titleLimit: 400 },
  };
  const number = (field, title) => ({ field, title, format: ".5~g", type: "quantitative" });
  const tooltip = {
    each: [number("y", metric.name), { field: "seed" }],
    band: [number("y", "mean"), number("min", "lowest"), number("max", "highest"), { field: "count", title: "seeds" }],
  }[seeds];
  const colour = { color: look("colour") };
  const curves = {
    mark: { type: "line", strokeWidth: 1.7, point: { size: against === "step" ? 8 : 45 } },
    encoding: {
      ...{ x, y, ...colour, strokeDash: look("dash") },
      ...(seeds === "each" && { detail: { field: "seed" } }),
      tooltip: [{ field: "label", title: "variant" }, { field: against }, ...tooltip],
    },
  };
  const range = { x, y: { ...y, field: "min" }, y2: { field: "max" }, ...colour };
  const band = { mark: { type: "area", opacity: 0.15 }, encoding: range };
  const broken = breakdowns(study, view);
  const crosses = {
    data: { values: broken },
    mark: { type: "text", text: "✕", fontWeight: "bold", fontSize: 15 },
    encoding: {
      x: { ...x, field: against === "step" ? "broken" : "depth" },
      ...{ y: { value: -9 }, ...colour, tooltip: { field: "words" } },
    },
  };
  const level = values === "own" ? study.chance[against][metric.name] : { ratio: 1, difference: 0 }[values];
  const words = { type: "text", text: values === "own" ? "chance" : "plain", align: "right", dx: -4, dy: -7, x: "width" };
  const levels = {
    data: { values: [{ level }] },
    encoding: { y: { ...y, field: "level" }, color: { value: "#555" } },
    layer: [{ mark: { type: "rule", strokeDash: [2, 3] } }, { mark: words }],
  };
  return {
    ...{ width: "container", height: 380, background: "white", autosize: { type: "fit", contains: "padding" } },
    padding: { top: 20, left: 5, right: 10, bottom: 5 },
    config: { font: "system-ui, sans-serif", axis: { labelFontSize: 13, titleFontSize: 13, titleFontWeight: "normal", gridColor: "#eff0f2" } },
    layer: [
      {
        data: { values: study.data[against] },
        transform: transformsOf(study, metric, view),
        layer: seeds === "band" ? [band, curves] : [curves],
      },
      ...(broken.length ? [crosses] : []),
      ...(level == null || (axis === "log" && level <= 0) ? [] : [levels]),
    ],
  };
}

/** Show what the address asks for. */
async function draw() {
  globalThis.vegaEmbed ?? document.head.append(element("script", await packed("vega")));
  const name = offer("study");
  studies[name] ??= await load(name);
  const study = studies[name];
  const metric = fill(study);
  const view = { ...Object.fromEntries(new FormData(form)), variants: new FormData(form).getAll("variant") };
  view.values ??= "own";
  view.axis = form.axis.value;
  const theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  if (!view.variants.length) {
    shown = { study: name, metric, view, rows: [] };
    return plot.replaceChildren();
  }
  const options = { actions: false, renderer: "svg", tooltip: { theme } };
  const result = await vegaEmbed(plot, specOf(study, metric, view), options);
  const points = result.vgSpec.marks.find(({ type }) => type === "symbol").from.data;
  const rows = result.view.data(points);
  shown = { study: name, metric, view, rows, chart: result };
  plot.setAttribute("aria-label", `${metric.label} against ${view.against}`);
  const broken = breakdowns(study, view);
  const drawn = new Set([...rows, ...broken].map(({ variant }) => variant));
  const absent = view.variants.filter((variant) => !drawn.has(variant));
  const notes = broken.map(({ words }) => `✕ ${words}`);
  if (absent.length) notes.push(`Not drawn: ${absent.map((one) => study.variants[one].label).join(", ")}`);
  document.querySelector("#notes").replaceChildren(...notes.map((words) => element("li", words)));
}

/** The drawn numbers as CSV. */
function csvOf({ study, metric, view, rows }) {
  const own = view.seeds === "band" ? ["count", "y", "min", "max"] : ["seed", "y"];
  const columns = ["variant", "depth", ...(view.against === "step" ? ["step"] : []), ...own];
  const same = [study, view.platform, metric.name, view.values];
  const field = (value) => (typeof value === "number" ? String(Number(value.toPrecision(5))) : value);
  const names = { y: view.seeds === "band" ? "mean" : "value", min: "lowest", max: "highest", count: "seeds" };
  const head = ["study", "platform", "metric", "values", ...columns.map((column) => names[column] ?? column)];
  const lines = rows.map((row) => [...same, ...columns.map((column) => field(row[column]))]);
  return [head, ...lines].map((line) => `${line.join(",")}\n`).join("");
}

if (form) {
  form.addEventListener("change", ({ target }) => {
    const view = new URLSearchParams(new FormData(form));
    const isUsual = [...form.querySelectorAll("[name=variant]")].every((box) => box.checked === box.defaultChecked);
    for (const name of [...(RESET[target.name] ?? []), ...(isUsual ? ["variant"] : [])]) view.delete(name);
    if (!isUsual && !view.has("variant")) view.append("variant", ""); // none
    history.replaceState(null, "", `?${view}#explorer`);
    draw();
  });
  form.addEventListener("click", ({ target }) => {
    if (!target.dataset.check) return;
    for (const box of form.querySelectorAll("[name=variant]")) box.checked = target.dataset.check === "all";
    form.dispatchEvent(new Event("change"));
  });
  document.querySelector("#csv").addEventListener("click", () => {
    const href = URL.createObjectURL(new Blob([csvOf(shown)], { type: "text/csv" }));
    const { study, metric, view } = shown;
    element("a", "", { href, download: `${study}-${metric.name}-${view.against}.csv` }).click();
  });
  const seen = new IntersectionObserver((entries) => {
    if (!entries.some(({ isIntersecting }) => isIntersecting)) return;
    seen.disconnect();
    draw();
  });
  seen.observe(plot);
}
