/* The records behind a number. A glance (pointer or focus) shows them; a click, a tap or Enter moves into them.

   Numbers of a table are one stop of the Tab key; arrow keys move among them. */

const behind = (() => {
  const box = document.getElementById("behind");
  const GLANCE_MS = 150;
  const LEAVE_MS = 250;
  let owner = null;
  let entered = false;
  let quiet = false;
  let timer = 0;

  /** Make every number of a table that has something behind it a button. */
  function attach(table) {
    for (const cell of table.querySelectorAll("tr[data-records] > .behind, tr[data-remark] > .behind")) {
      const button = element("button", cell.textContent);
      button.type = "button";
      button.tabIndex = -1;
      button.setAttribute("aria-haspopup", "dialog");
      button.setAttribute("aria-expanded", "false");
      cell.replaceChildren(button);
    }
    settle(table);
  }

  /** Let the Tab key reach exactly one visible number of a table. */
  function settle(table) {
    const all = [...table.querySelectorAll(".behind > button")];
    const stop = all.find((button) => button.tabIndex === 0 && isShown(button)) ?? all.find(isShown);
    for (const button of all) button.tabIndex = button === stop ? 0 : -1;
  }

  function isShown(button) {
    return !button.parentElement.hidden && !button.closest("tr").hidden;
  }

  function open(button, enter) {
    clearTimeout(timer);
    if (owner !== button) {
      close();
      owner = button;
      box.replaceChildren(...content(button));
      button.setAttribute("aria-expanded", "true");
    }
    box.hidden = false;
    entered = enter;
    put(button);
    if (enter) box.focus({ preventScroll: true });
  }

  function close(comeBack = false) {
    clearTimeout(timer);
    if (owner === null) return;
    const button = owner;
    owner = null;
    entered = false;
    box.hidden = true;
    button.setAttribute("aria-expanded", "false");
    if (comeBack) {
      quiet = true; // otherwise the focus would open it again
      button.focus();
      quiet = false;
    }
  }

  /** Below the number, or above it where that has no room; inside the window's width. */
  function put(button) {
    const spot = button.getBoundingClientRect();
    const view = document.documentElement;
    const left = Math.max(8, Math.min(spot.left, view.clientWidth - box.offsetWidth - 8));
    const fitsBelow = spot.bottom + 6 + box.offsetHeight <= view.clientHeight;
    const fitsAbove = spot.top - 6 - box.offsetHeight >= 0;
    const top = fitsBelow || !fitsAbove ? spot.bottom + 6 : spot.top - 6 - box.offsetHeight;
    box.style.left = `${left + scrollX}px`;
    box.style.top = `${top + scrollY}px`;
  }

  function content(button) {
    const cell = button.parentElement;
    const row = cell.parentElement;
    const header = headerOf(cell);
    const title = element("div", "", "title");
    title.id = "behind-title";
    title.append(element("span", `${row.cells[0].textContent.trim()}, ${header}: ${button.textContent.trim()}`));
    const end = element("button", "Close");
    end.type = "button";
    end.addEventListener("click", () => close(true));
    title.append(end);
    const parts = [title];
    if (carried.definitions[header]) parts.push(element("p", carried.definitions[header]));
    if (row.dataset.records) {
      const records = row.dataset.records.split(" ").map((position) => carried.records[position]);
      parts.push(rounds(records, header));
      for (const position of new Set(records.map((record) => record.environment))) {
        parts.push(element("p", carried.environments[position], "small"));
      }
    }
    if (row.dataset.remark) parts.push(element("p", row.dataset.remark));
    return parts;
  }

  function headerOf(cell) {
    const heads = cell.closest("table").tHead.rows[0].cells;
    return heads[cell.cellIndex].textContent.trim();
  }

  /** A line per record: its own value, how it ended, what was verified, and its file. */
  function rounds(records, header) {
    const known = Object.hasOwn(carried.headers, header);
    const shown = known ? header : "samples/s"; // what no record has by this name goes with its speed
    const table = element("table");
    const head = table.createTHead().insertRow();
    const names = ["round", shown, "status", "record", "verification", "started", "commit", "code"];
    for (const name of names) {
      const cell = element("th", name);
      cell.scope = "col";
      head.append(cell);
    }
    const body = table.createTBody();
    for (const record of records) {
      const line = body.insertRow();
      const number = element("th", String(record.round));
      number.scope = "row";
      const file = element("td");
      if (record.file === null) file.textContent = "no file";
      else {
        const link = element("a", "JSON");
        link.href = record.file;
        file.append(link);
      }
      line.append(
        number,
        element("td", record.values[carried.headers[shown]], "number"),
        element("td", record.status),
        file,
        element("td", record.checks),
        element("td", record.started.slice(0, 16).replace("T", " ")),
        element("td", record.commit),
        element("td", record.code),
      );
    }
    const inner = element("div", "", "inner");
    inner.append(table);
    return inner;
  }

  /** The next number in the direction of a key, among those shown; null where there is none. */
  function neighbour(button, key) {
    const cell = button.parentElement;
    const row = cell.parentElement;
    const across = [...row.querySelectorAll(".behind > button")].filter(isShown);
    const down = [...row.parentElement.rows]
      .map((other) => other.cells[cell.cellIndex].querySelector("button"))
      .filter((other) => other !== null && isShown(other));
    const to = {
      ArrowRight: across[across.indexOf(button) + 1],
      ArrowLeft: across[across.indexOf(button) - 1],
      ArrowDown: down[down.indexOf(button) + 1],
      ArrowUp: down[down.indexOf(button) - 1],
      Home: across[0],
      End: across[across.length - 1],
    };
    return to[key] ?? null;
  }

  const numberAt = (target) => (target instanceof Element ? target.closest(".behind > button") : null);

  document.addEventListener("click", (event) => {
    const button = numberAt(event.target);
    if (button !== null) open(button, true);
    else if (!box.contains(event.target)) close();
  });
  document.addEventListener("focusin", (event) => {
    const button = numberAt(event.target);
    if (button === null || quiet) return;
    if (button.matches(":focus-visible")) open(button, false);
  });
  document.addEventListener("focusout", (event) => {
    const to = event.relatedTarget;
    if (owner === null || box.contains(to) || numberAt(to) !== null) return;
    if (entered && to === null) return; // a click on the box's own text
    close();
  });
  document.addEventListener("pointerover", (event) => {
    if (event.pointerType !== "mouse" || entered) return;
    const button = numberAt(event.target);
    if (button !== null) {
      clearTimeout(timer);
      timer = setTimeout(() => open(button, false), GLANCE_MS);
    } else if (box.contains(event.target)) clearTimeout(timer);
    else if (owner !== null && owner !== document.activeElement) {
      clearTimeout(timer);
      timer = setTimeout(close, LEAVE_MS);
    } else clearTimeout(timer);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && owner !== null) {
      close(entered);
      return;
    }
    if (event.key === "Tab" && entered) {
      const stops = [box, ...box.querySelectorAll("button, a")];
      const at = stops.indexOf(document.activeElement);
      if (event.shiftKey ? at <= 1 : at === stops.length - 1) {
        event.preventDefault();
        close(true);
      }
      return;
    }
    const button = numberAt(event.target);
    if (button === null) return;
    const next = neighbour(button, event.key);
    if (next === null) return;
    event.preventDefault();
    button.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });
  document.addEventListener("scroll", (event) => {
    if (owner === null || box.contains(event.target) || event.target === document) return;
    if (entered || owner === document.activeElement) put(owner);
    else close();
  }, true);

  for (const table of document.querySelectorAll("main table")) attach(table);
  return { attach, settle, close };
})();
