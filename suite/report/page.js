"use strict";

/* Every table sorts by the column whose head is pressed; one text filters the rows of all; a slider sets the device
   memory of the leaderboards. */

const filter = document.getElementById("filter");
const slider = document.getElementById("budget");
const boards = [...document.querySelectorAll("#leaderboard table")];
const bytes = (row) => Number(row.cells[0].dataset.value);
const budgets = [...new Set(boards.flatMap((table) => [...table.tBodies[0].rows].map(bytes)))].sort((a, b) => a - b);

function sort(table, head) {
  const descending = head.getAttribute("aria-sort") === "ascending";
  const value = (row) => row.cells[head.cellIndex].dataset.value;
  const compare = (a, b) => {
    const [x, y] = [value(a), value(b)];
    if (x === "" || y === "") return (x === "") - (y === ""); // rows without a value come last
    const difference = head.className === "text" ? (x > y) - (x < y) : x - y;
    return descending ? -difference : difference;
  };
  for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", descending ? "descending" : "ascending");
  table.tBodies[0].append(...[...table.tBodies[0].rows].sort(compare));
}

function show() {
  const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  const chosen = slider === null ? 0 : budgets[slider.value];
  for (const table of document.querySelectorAll("main table")) {
    const article = table.closest("article");
    const heading = article.querySelector("h3")?.textContent ?? "";
    const rows = [...table.tBodies[0].rows];
    // above its largest budget a leaderboard stays as it is, below its smallest it is empty
    const within = boards.includes(table) ? Math.max(...rows.map(bytes).filter((size) => size <= chosen)) : null;
    for (const row of rows) {
      const text = `${heading} ${row.textContent}`.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word)) || (within !== null && bytes(row) !== within);
    }
    article.hidden = words.length > 0 && rows.every((row) => row.hidden);
  }
  if (slider !== null) document.getElementById("budget-words").value = `${(chosen / 2 ** 20).toLocaleString("en-US")} MiB`;
}

for (const head of document.querySelectorAll("main thead th")) {
  const button = document.createElement("button");
  button.append(...head.childNodes);
  button.addEventListener("click", () => sort(head.closest("table"), head));
  head.append(button);
}
filter.addEventListener("input", show);
if (slider !== null) {
  slider.max = budgets.length - 1;
  slider.value = slider.max;
  slider.addEventListener("input", show);
}
document.getElementById("controls").hidden = false;
show();
