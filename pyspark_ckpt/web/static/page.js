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

  function mark(isStale) {
    document.body.classList.toggle("stale", isStale);
  }

  async function refresh() {
    const late = setTimeout(mark, 15000, true);
    try {
      if (!isBusy()) {
        const answer = await fetch(location.href, {
          headers: { Accept: "text/html" }, credentials: "same-origin", signal: AbortSignal.timeout(90000),
        });
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        const next = page.getElementById("main");
        if (!next) throw new Error("no page: another server, another token, or too much at once");
        const main = document.getElementById("main");
        const open = [...main.querySelectorAll("details[open]")].map((each) => each.id);
        for (const id of open) {
          const each = next.querySelector("#" + CSS.escape(id));
          if (each) each.open = true;
        }
        document.body.dataset.refresh = page.body.dataset.refresh;
        main.replaceWith(next);
        mark(false);
      }
    } catch {
      mark(true);
    }
    clearTimeout(late);
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
