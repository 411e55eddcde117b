/* A budget of device memory: of the standings at every budget, the leaderboard shows those of the slider's. */

if (carried.budgets.length > 0) {
  const slider = document.getElementById("budget-slider");
  const output = document.getElementById("budget-bytes");
  const tables = [...document.querySelectorAll("#sheet-leaderboard table")];
  const last = carried.budgets.length - 1;
  const within = (row) => carried.budgets.findIndex(([, words]) => words === row.cells[0].textContent.trim());

  /** Show what the address chooses; without a choice, room for every cell. */
  function show() {
    const chosen = carried.budgets.findIndex(([bytes]) => String(bytes) === choices().get("budget"));
    slider.value = chosen < 0 ? last : chosen;
    const [bytes, words] = carried.budgets[slider.value];
    output.textContent = `${words} (${bytes.toLocaleString("en-US")} bytes)`;
    slider.setAttribute("aria-valuetext", output.textContent);
    behind.close();
    for (const table of tables) {
      const rows = [...table.tBodies[0].rows];
      // above its largest budget a leaderboard stays as it is, below its smallest it is empty
      const at = Math.max(...rows.map(within).filter((place) => place <= slider.value));
      for (const row of rows) row.hidden = within(row) !== at;
      behind.settle(table);
    }
  }

  slider.max = last;
  slider.addEventListener("input", () => {
    const at = Number(slider.value);
    keep({ budget: at === last ? "" : String(carried.budgets[at][0]) });
    show();
  });
  addEventListener("hashchange", show);
  document.getElementById("budget-control").hidden = false;
  show();
}
