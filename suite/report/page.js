"use strict";

/* Every table sorts by the column whose head is pressed; one text filters the rows of all. */

const filter = document.getElementById("filter");

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
  for (const article of document.querySelectorAll("main article")) {
    const heading = article.querySelector("h3")?.textContent ?? "";
    const rows = [...article.querySelectorAll("tbody tr")];
    for (const row of rows) {
      const text = `${heading} ${row.textContent}`.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
    article.hidden = words.length > 0 && rows.every((row) => row.hidden);
  }
}

for (const head of document.querySelectorAll("main thead th")) {
  const button = document.createElement("button");
  button.append(...head.childNodes);
  button.addEventListener("click", () => sort(head.closest("table"), head));
  head.append(button);
}
filter.addEventListener("input", show);
document.getElementById("controls").hidden = false;
