/* The main table: filters, sorting, and a choice of columns. */

if (document.getElementById("measurements-table") !== null) {
  const table = document.getElementById("measurements-table");
  const form = document.getElementById("filters");
  const count = document.getElementById("count");
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const words = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
  const heads = [...table.tHead.rows[0].cells];
  const headers = heads.map((head) => head.textContent);
  const facets = ["dataset", "setting", "optimizer", "device", "status"];

  /** Show what the address chooses. */
  function show() {
    const chosen = choices();
    for (const field of form.elements) {
      if (!field.name) continue;
      field.value = chosen.get(field.name) ?? "";
      // A value that this page does not have filters nothing, and the list says so
      if (field.value === "" && field.options) field.selectedIndex = 0;
    }
    filter();
    sort(headers.indexOf(chosen.get("sort")), chosen.get("order") === "descending");
    choose(carried.views[form.elements.columns.value]);
    behind.close();
    behind.settle(table);
  }

  function filter() {
    const wanted = form.elements.text.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) {
      const fits = facets.every((name) => ["", row.dataset[name]].includes(form.elements[name].value));
      row.hidden = !(fits && wanted.every((word) => words.get(row).includes(word)));
    }
    const shown = rows.filter((row) => !row.hidden).length;
    count.textContent = `${shown} of ${rows.length} rows`;
  }

  /** By a column, rows without a value last; -1: in the page's own order. */
  function sort(column, descending) {
    const isText = column >= 0 && heads[column].classList.contains("text");
    const value = (row) => row.cells[column].dataset.value;
    const compare = (a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x === "" || y === "") return (x === "") - (y === "");
      const difference = isText ? (x > y) - (x < y) : Number(x) - Number(y);
      return descending ? -difference : difference;
    };
    body.append(...(column < 0 ? rows : rows.toSorted(compare)));
    heads.forEach((head, index) => {
      if (index === column) head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
  }

  /** Hide the columns that a view leaves out; what identifies a row stays. */
  function choose(view) {
    const shown = headers.map((header) => view.includes(header) || !Object.hasOwn(carried.headers, header));
    for (const row of [table.tHead.rows[0], ...rows]) {
      shown.forEach((show, index) => {
        row.cells[index].hidden = !show;
      });
    }
  }

  for (const head of heads) {
    const button = element("button", head.textContent);
    button.type = "button";
    button.addEventListener("click", () => {
      const before = head.getAttribute("aria-sort");
      const order = before === "ascending" ? "descending" : "ascending";
      keep({ sort: button.textContent, order });
      show();
    });
    head.replaceChildren(button);
  }
  const take = (event) => {
    const field = event.target;
    keep({ [field.name]: field.selectedIndex === 0 ? "" : field.value });
    show();
  };
  form.addEventListener("change", take);
  form.elements.text.addEventListener("input", take);
  form.addEventListener("reset", (event) => {
    event.preventDefault();
    keep(Object.fromEntries([...facets, "columns", "text", "sort", "order"].map((name) => [name, ""])));
    show();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  addEventListener("hashchange", show);
  form.hidden = false;
  document.getElementById("hint").hidden = false;
  show();
}
