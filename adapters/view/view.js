"use strict";
// Replaces the live part of a run's page until the run is over. The server escapes all texts.
const live = document.getElementById("live");
const pause = document.getElementById("pause");
const note = document.getElementById("note");
const interval = 2000; // milliseconds
let paused = false;

async function refresh() {
  if (!paused && document.visibilityState === "visible") {
    try {
      const response = await fetch(live.dataset.from, { cache: "no-store" });
      if (!response.ok) throw new Error(`status ${response.status}`);
      live.innerHTML = await response.text();
      note.textContent = "";
      if (live.querySelector("[data-over]")) {
        location.reload(); // for the tables and weights of the end
        return;
      }
    } catch (error) {
      note.textContent = `The server does not answer (${error.message}); trying again.`;
    }
  }
  setTimeout(refresh, interval);
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
