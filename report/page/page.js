"use strict";

/** The text that was packed: compressed, in base64. */
async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

/** The text of a packed script element; undefined without one. Each is unpacked once. */
function packed(id) {
  const script = document.getElementById(id);
  return script && (script.unpacked ??= unpack(script.textContent));
}

function element(tag, text, attributes = {}) {
  const made = document.createElement(tag);
  made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

// The contents mark the section that is shown, which page.css chooses, and close after a choice on a
// small screen.
const contents = document.querySelector("#contents");
const small = matchMedia("(max-width: 64rem)");

function mark() {
  const shown = [...document.querySelectorAll("main > section")].find((one) => one.checkVisibility());
  for (const link of contents.querySelectorAll("a")) {
    link.toggleAttribute("aria-current", link.hash === `#${shown.id}`);
  }
  contents.open = !small.matches;
}
for (const event of ["load", "hashchange"]) addEventListener(event, mark);
small.addEventListener("change", mark);
contents.open = !small.matches;

// A figure is unpacked when it comes near.
const near = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting) continue;
      near.unobserve(target);
      unpack(target.dataset.svg).then((svg) => {
        target.src = URL.createObjectURL(new Blob([svg], { type: "image/svg+xml" }));
      });
    }
  },
  { rootMargin: "600px" },
);
for (const image of document.querySelectorAll("img[data-svg]")) near.observe(image);

// Claims of a verdict, with some words.
const filter = document.querySelector("[data-filter]");
function choose() {
  const [verdict, words] = [filter.verdict.value, filter.words.value.toLowerCase()];
  for (const row of document.querySelectorAll(`#${filter.dataset.filter} tbody tr`)) {
    const isNamed = !verdict || row.dataset.verdict === verdict;
    row.hidden = !(isNamed && row.textContent.toLowerCase().includes(words));
  }
}
for (const event of ["input", "change"]) filter?.addEventListener(event, choose);
filter?.addEventListener("submit", (event) => event.preventDefault());

// A link to a row of a table shows that row; with a key held, the browser opens the file.
document.addEventListener("click", async (event) => {
  const link = event.target.closest("a[data-row]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  const line = JSON.parse(await packed("rows"))[link.dataset.row];
  if (!line) return location.assign(link.href);
  const dialog = document.querySelector("#evidence");
  dialog.querySelector("h2").textContent = line.title;
  const file = dialog.querySelector("a");
  file.href = link.href;
  file.textContent = `line ${link.dataset.row.split("#L")[1]} of ${link.getAttribute("href").split("#")[0]}`;
  const rows = line.rows.map(([name, value]) => {
    const row = document.createElement("tr");
    row.append(element("th", name, { scope: "row" }), element("td", value));
    return row;
  });
  dialog.querySelector("tbody").replaceChildren(...rows);
  dialog.showModal();
});
