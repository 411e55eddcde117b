/* Standings within a budget of device memory. They were computed where the tables are made, for every budget at which
   anything changes; here the right one is looked up. */

if (carried.leaderboards.length > 0) {
  const slider = document.getElementById("budget-slider");
  const output = document.getElementById("budget-bytes");
  const leaderboards = [...document.querySelectorAll(".leaderboard")];
  const last = carried.steps.length - 1;
  const inDigits = (bytes) => bytes.toLocaleString("en-US");

  /** Show what the address chooses; without a choice, room for every cell. */
  function show() {
    const chosen = carried.steps.findIndex(([bytes]) => String(bytes) === choices().get("budget"));
    slider.value = chosen < 0 ? last : chosen;
    const [bytes, words] = carried.steps[slider.value];
    output.textContent = `${words} (${inDigits(bytes)} bytes)`;
    slider.setAttribute("aria-valuetext", output.textContent);
    behind.close();
    leaderboards.forEach((part, index) => fill(part, carried.leaderboards[index], bytes, words));
  }

  function fill(part, leaderboard, budget, words) {
    const [, lines] = leaderboard.standings.findLast(([least]) => least <= budget) ?? [0, []];
    const body = part.querySelector("tbody");
    body.replaceChildren(...lines.map((line) => row(line, leaderboard.text)));
    part.querySelector(".within").textContent = `within ${words} of device memory`;
    const outside = leaderboard.smallest.filter(([, least]) => least > budget);
    part.querySelector(".outside").textContent =
      outside.length === 0
        ? "Every system fits."
        : `Does not fit: ${outside.map(([name, least]) => `${name} (its smallest cell takes ${inDigits(least)} bytes)`).join(", ")}.`;
    behind.attach(part.querySelector("table"));
  }

  function row({ cells, records }, text) {
    const made = element("tr");
    made.dataset.records = records.join(" ");
    const place = element("th", cells[0]);
    place.scope = "row";
    made.append(place, ...cells.slice(1).map((words, index) => element("td", words, text[index + 1] ? "text" : "number behind")));
    return made;
  }

  slider.max = last;
  slider.addEventListener("input", () => {
    const at = Number(slider.value);
    keep({ budget: at === last ? "" : String(carried.steps[at][0]) });
    show();
  });
  addEventListener("hashchange", show);
  document.getElementById("budget-control").hidden = false;
  show();
}
