"use strict";
// What pages need beyond plain forms and links. Everything here is a convenience: without it the page still works.
(() => {
  const token = () => document.querySelector('meta[name="csrf-token"]').content;

  document.addEventListener("htmx:config:request", (event) => {
    event.detail.ctx.request.headers["X-CSRFToken"] = token();
  });

  const focusFirst = () => {
    const target = document.querySelector("[data-focus]");
    if (target) target.focus();
  };

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    await navigator.clipboard.writeText(button.dataset.copy);
    document.getElementById("hub-status").textContent = button.textContent;
  });

  focusFirst();
})();
