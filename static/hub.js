"use strict";
// What pages gain from scripts beyond plain forms and links. Without it everything still works.
(() => {
  const FILTER_WAIT = { select: 300, input: 500 };
  const status = document.getElementById("hub-status");

  // htmx sends the token that each page carries.
  document.addEventListener("htmx:config:request", ({ detail }) => {
    detail.ctx.request.headers["X-CSRFToken"] = document.querySelector('meta[name="csrf-token"]').content;
  });

  // What only works with a script is shown by it.
  const reveal = (root) => root.querySelectorAll("[data-with-script]").forEach((part) => (part.hidden = false));
  reveal(document);
  document.addEventListener("htmx:after:swap", () => reveal(document));

  // The result of a form, or the summary of what is wrong with it, is read first.
  const first = document.querySelector("[data-focus]");
  if (first) first.focus();

  document.addEventListener("click", async ({ target }) => {
    const copy = target.closest("[data-copy]");
    if (copy) {
      await navigator.clipboard.writeText(copy.dataset.copy);
      const words = copy.textContent;
      copy.textContent = status.textContent = status.dataset.copied;
      setTimeout(() => (copy.textContent = words), 2000);
    }
    const show = target.closest("[data-show]");
    if (show) {
      const field = document.getElementById(show.dataset.show);
      const visible = field.type === "password";
      field.type = visible ? "text" : "password";
      show.setAttribute("aria-pressed", String(visible));
    }
  });

  // A form is sent once; the server would take the second as the same anyway.
  document.addEventListener("submit", (event) => {
    const button = event.submitter;
    if (!event.target.matches("[data-once]") || !button) return;
    if (button.getAttribute("aria-disabled")) return event.preventDefault();
    button.setAttribute("aria-disabled", "true");
    button.dataset.words = button.textContent;
    if (button.dataset.busy) button.textContent = button.dataset.busy;
  });
  // Back from the next page: the browser may show this one as it was left.
  addEventListener("pageshow", () => {
    document.querySelectorAll("[data-once] [aria-disabled]").forEach((button) => {
      button.removeAttribute("aria-disabled");
      if (button.dataset.words) button.textContent = button.dataset.words;
    });
  });

  // Filters apply themselves a moment after a change; the reloaded page puts the focus back into the same field.
  const KEPT = "hub-filter";
  document.querySelectorAll("form[data-filters]").forEach((form) => {
    let timer;
    const later = (event, wait) => {
      clearTimeout(timer);
      timer = setTimeout(() => {
        sessionStorage.setItem(KEPT, event.target.id);
        form.requestSubmit();
      }, wait);
    };
    form.addEventListener("change", (event) => {
      if (event.target.matches("select, [type=checkbox]")) later(event, FILTER_WAIT.select);
    });
    form.addEventListener("input", (event) => {
      if (event.target.matches("[type=search]")) later(event, FILTER_WAIT.input);
    });
  });
  const kept = document.getElementById(sessionStorage.getItem(KEPT) || "-");
  sessionStorage.removeItem(KEPT);
  if (kept && !first) {
    kept.focus();
    if (kept.matches("[type=search]")) kept.setSelectionRange(kept.value.length, kept.value.length);
  }
})();
