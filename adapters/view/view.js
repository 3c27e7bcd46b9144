"use strict";
// Replaces the live part of a page until all runs in it are over. The server escapes all texts.
const live = document.getElementById("live");
const pause = document.getElementById("pause");
const note = document.getElementById("note");
const interval = 2000; // milliseconds between two requests, at least
const share = 10; // of the time of a request, for servers with many runs or a slow store
let paused = false;

function show(text) {
  const chosen = new Set(Array.from(live.querySelectorAll("input:checked"), (box) => box.value));
  const key = (each) => each.href || each.value;
  const focused = live.contains(document.activeElement) ? key(document.activeElement) : "";
  live.innerHTML = text;
  for (const each of live.querySelectorAll("a, input")) {
    each.checked = chosen.has(each.value);
    if (focused && key(each) === focused) each.focus({ preventScroll: true });
  }
}

async function refresh() {
  const started = performance.now();
  if (!paused && document.visibilityState === "visible") {
    try {
      const response = await fetch(live.dataset.from, { cache: "no-store" });
      if (!response.ok) throw new Error(`status ${response.status}`);
      show(await response.text());
      note.textContent = "";
      if (live.querySelector("[data-over]")) {
        if ("reload" in live.dataset) location.reload(); // for the tables of the end
        pause.hidden = true;
        return;
      }
    } catch (error) {
      note.textContent = `The server does not answer (${error.message}); trying again.`;
    }
  }
  setTimeout(refresh, Math.max(interval, share * (performance.now() - started)));
}

if (live && pause) {
  pause.hidden = false;
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    pause.textContent = paused ? "Continue" : "Pause";
  });
  setTimeout(refresh, interval);
}
