"use strict";

/* What the page was made from, and what the reader chose. Choices are in the address, so that a link shows the view
   that its sender saw. */

const carried = JSON.parse(document.getElementById("carried").textContent);

let chosen = "";

/** Choices by name. A hash without "=" is an anchor of the page and changes none of them. */
function choices() {
  const hash = location.hash.slice(1);
  if (hash === "" || hash.includes("=")) chosen = hash;
  return new URLSearchParams(chosen);
}

/** Keep choices in the address; an empty value is the page's own choice and is left out. */
function keep(changes) {
  const kept = choices();
  for (const [name, value] of Object.entries(changes)) {
    if (value === "") kept.delete(name);
    else kept.set(name, value);
  }
  const hash = kept.toString();
  history.replaceState(null, "", hash === "" ? location.pathname + location.search : "#" + hash);
}

/** An element with text: the only way that words get onto the page, so that none of them is read as markup. */
function element(name, text = "", className = "") {
  const made = document.createElement(name);
  if (text !== "") made.textContent = text;
  if (className !== "") made.className = className;
  return made;
}
