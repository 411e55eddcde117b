/* Light or dark: as the system has it, until the button is pressed. */

{
  const button = document.getElementById("scheme");
  const system = matchMedia("(prefers-color-scheme: dark)");

  function show() {
    const chosen = choices().get("scheme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.scheme = chosen;
    else delete document.documentElement.dataset.scheme;
    button.textContent = isDark() ? "Light scheme" : "Dark scheme";
  }

  function isDark() {
    const chosen = document.documentElement.dataset.scheme;
    return chosen === undefined ? system.matches : chosen === "dark";
  }

  button.addEventListener("click", () => {
    keep({ scheme: isDark() ? "light" : "dark" });
    show();
  });
  system.addEventListener("change", show);
  addEventListener("hashchange", show);
  button.hidden = false;
  show();
}
