// Keeps the table of runs up to date while someone looks at it: the same page is asked for again, and its rows taken.
"use strict";
(() => {
  const every_ms = 5000;
  const look = async () => {
    const rows = document.getElementById("runs");
    if (document.hidden || rows.contains(document.activeElement)) return; // a row that has the focus would lose it
    const answer = await fetch(location.href);
    if (!answer.ok || answer.redirected) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.getElementById("runs");
    if (fresh && fresh.innerHTML !== rows.innerHTML) rows.replaceWith(fresh);
  };
  setInterval(() => look().catch(() => {}), every_ms); // a server that is away comes back
})();
