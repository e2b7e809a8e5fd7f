// Refreshes what is shown, and shows what a bar or a square stands for. The page works without this.
"use strict";
(() => {
  const button = document.getElementById("pause");
  const tip = document.getElementById("tip");
  let paused = false;
  let timer = 0;

  function every() {
    const asked = Number(document.body.dataset.refresh);
    return asked > 0 && document.querySelector("[data-soon]") ? Math.min(asked, 1) : asked;
  }

  function plan() {
    clearTimeout(timer);
    button.hidden = every() <= 0;
    if (every() > 0 && !paused) timer = setTimeout(refresh, every() * 1000);
  }

  function isBusy() {
    const chosen = document.activeElement;
    const selected = String(window.getSelection());
    return document.hidden || selected !== "" || (chosen && chosen.matches("input, select, textarea"));
  }

  async function refresh() {
    try {
      if (!isBusy()) {
        const answer = await fetch(location.href, { headers: { Accept: "text/html" }, credentials: "same-origin" });
        if (answer.status === 401) return;
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        const main = document.getElementById("main");
        const open = [...main.querySelectorAll("details[open]")].map((each) => each.id);
        const next = page.getElementById("main");
        if (next) {
          for (const id of open) {
            const each = next.querySelector("#" + CSS.escape(id));
            if (each) each.open = true;
          }
          document.body.dataset.refresh = page.body.dataset.refresh;
          main.replaceWith(next);
          document.body.classList.remove("stale");
        }
      }
    } catch {
      document.body.classList.add("stale");
    }
    plan();
  }

  button.addEventListener("click", () => {
    paused = !paused;
    button.textContent = paused ? "refresh" : "pause";
    button.setAttribute("aria-pressed", String(paused));
    plan();
  });
  document.addEventListener("pointerover", (event) => {
    const shown = event.target instanceof Element ? event.target.closest("[data-tip]") : null;
    tip.hidden = !shown;
    if (shown) tip.textContent = shown.dataset.tip;
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") tip.hidden = true;
  });
  plan();
})();
