"use strict";
// The live view of a job, and of the list of jobs. A stream where there is room for one, else polling, and always a text
// that says which it is. Whatever comes, the version decides: an older picture never replaces a newer one.
(() => {
  const STREAMS = 3; // A browser has six connections to a host over all its tabs; three stay free for pages.
  const SILENCE = 40_000;
  const QUIET_AFTER = 45;
  const STREAM_AGAIN = [5_000, 15_000, 60_000];
  const SAY_EVERY = 30_000;
  const loaded = performance.now();
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const one = (selector, root = document) => root.querySelector(selector);

  // The server's time, by its own word and the time that passed here since: the visitor's clock may be wrong.
  const clock = { server: Date.now(), at: performance.now() };
  const setClock = (text) => {
    const server = Date.parse(text);
    if (!Number.isNaN(server)) Object.assign(clock, { server, at: performance.now() });
  };
  const now = () => clock.server + performance.now() - clock.at;

  const holder = one("[data-words]");
  if (!holder) return;
  const words = JSON.parse(holder.dataset.words);
  const say = (key, values = {}) =>
    words[values.count === 1 && words[key + ".one"] ? key + ".one" : key].replace(/\{(\w+)\}/g, (_, name) => values[name]);
  if (holder.dataset.now) setClock(holder.dataset.now);

  const duration = (seconds) => {
    const whole = Math.max(0, Math.floor(seconds));
    if (whole < 60) return say("duration.seconds", { count: whole });
    const minutes = Math.floor(whole / 60);
    if (minutes < 60) {
      return whole % 60
        ? say("duration.minutes_seconds", { minutes, seconds: whole % 60 })
        : say("duration.minutes", { count: minutes });
    }
    const hours = Math.floor(minutes / 60);
    if (hours < 48) return say("duration.hours_minutes", { hours, minutes: minutes % 60 });
    return say("duration.days", { count: Math.floor(hours / 24) });
  };
  const time = (moment) =>
    new Intl.DateTimeFormat("en-GB", {
      timeZone: holder.dataset.zone,
      hour: "2-digit",
      minute: "2-digit",
      second: "2-digit",
      timeZoneName: "short",
    }).format(moment);
  const write = (element, text) => {
    if (element && element.textContent !== text) element.textContent = text;
  };
  const show = (element, shown) => {
    if (element) element.hidden = !shown;
  };
  const tick = () => {
    for (const element of all("[data-since]")) write(element, duration((now() - Date.parse(element.dataset.since)) / 1000));
    for (const element of all("[data-until]")) {
      const left = (Date.parse(element.dataset.until) - now()) / 1000;
      write(element, left > 0 ? say("in", { duration: duration(left) }) : "");
    }
  };
  const wait = (milliseconds) => milliseconds * (0.8 + Math.random() * 0.4);

  const paused = () => localStorage.getItem("hub.updates") === "paused";
  const setPaused = (value) => localStorage.setItem("hub.updates", value ? "paused" : "on");

  // One request that tells status, text and headers, or null where no answer came.
  const ask = async (url) => {
    const began = performance.now();
    try {
      const response = await fetch(url, {
        cache: "no-store",
        credentials: "same-origin",
        headers: { Accept: "text/html", "Hub-Live": "1" },
        signal: AbortSignal.timeout(15_000),
      });
      const text = await response.text();
      setClock(response.headers.get("Hub-Now"));
      return { status: response.status, text, headers: response.headers, took: performance.now() - began };
    } catch {
      return null;
    }
  };
  const parse = (html) => {
    const template = document.createElement("template");
    template.innerHTML = html;
    return template.content;
  };

  // What a screen reader hears: one element, emptied and filled, never more than one text waiting.
  const speaker = {
    last: -Infinity,
    held: "",
    speak(text) {
      if (document.hidden) {
        this.held = text;
        return;
      }
      this.last = performance.now();
      const status = one("#hub-status");
      status.textContent = "";
      setTimeout(() => { status.textContent = text; }, 100);
    },
    returned() {
      if (this.held) this.speak(this.held);
      this.held = "";
    },
  };
  const alarm = (text) => write(one("#hub-alert"), text);

  // The page of one job.
  const job = (panel) => {
    const part = (name) => one(`[data-${name}]`, panel);
    const written = new Map(all("[data-slot]", panel).map((slot) => [slot.dataset.slot, slot.innerHTML.trim()]));
    const baseTitle = document.title;
    const shownFailed = Number(panel.dataset.failed);
    let mode = "";
    let seen = Date.parse(panel.dataset.now);
    let source = null;
    let release = null;
    let generation = 0;
    let timers = [];
    let failures = 0;
    let streamTries = 0;
    let streamAt = 0;
    let lastEvent = 0;
    let nextTry = 0;
    let every = 5;
    let mark = 0;
    let saidVersion = panel.dataset.version;
    let titled = -Infinity;
    let worker = null;
    let quiet = "";
    let fresh = null;
    let hiddenTimer = 0;

    const later = (action, milliseconds) => timers.push(setTimeout(action, milliseconds));
    const closeStream = () => {
      if (source) source.close();
      source = null;
      if (release) release();
      release = null;
    };
    const stop = () => {
      generation += 1;
      timers.forEach(clearTimeout);
      timers = [];
      closeStream();
    };
    const isOver = () => ["ended", "signed_out", "gone"].includes(mode);

    const describe = () => {
      const values = { at: time(seen), seconds: every, duration: duration((nextTry - performance.now()) / 1000) };
      write(part("connection"), say(mode, values));
      show(part("try-now"), mode === "lost");
      show(part("say-now"), !isOver());
      show(part("pause"), !isOver());
      write(part("pause"), say(mode === "paused" ? "resume" : "pause"));
      const link = part("connection-link");
      show(link, mode === "signed_out" || mode === "gone");
      if (mode === "signed_out") Object.assign(link, { href: panel.dataset.signIn, textContent: say("sign_in") });
      if (mode === "gone") Object.assign(link, { href: panel.dataset.jobs, textContent: say("jobs") });
    };
    const enter = (next) => {
      if (mode === next) return;
      const before = mode;
      mode = next;
      panel.dataset.mode = next;
      describe();
      if (next === "lost") later(() => mode === "lost" && speaker.speak(say("lost_say")), 10_000);
      if (next === "offline") speaker.speak(say("offline", { at: time(seen) }));
      if (next === "signed_out") alarm(say("signed_out"));
      if (before === "lost" && (next === "polling" || next === "live")) speaker.speak(say("back_say"));
    };
    const touched = () => {
      seen = now();
      failures = 0;
      write(part("updated"), say("updated", { at: time(seen) }));
    };

    const announce = (fragment, stepped) => {
      const text = fragment.dataset.say;
      const bar = one("progress[value]", panel);
      const quarter = bar ? Math.floor((bar.value / bar.max) * 4) : 0;
      const since = performance.now() - speaker.last;
      const due = since >= SAY_EVERY && (quarter > mark || since >= 2 * SAY_EVERY);
      if (stepped || (due && saidVersion !== fragment.dataset.version)) {
        mark = quarter;
        saidVersion = fragment.dataset.version;
        speaker.speak(text);
      }
    };
    const retitle = () => {
      const bar = one("progress[value]", panel);
      if (performance.now() - titled < 15_000 && panel.dataset.terminal !== "true") return;
      titled = performance.now();
      const running = bar && panel.dataset.terminal !== "true";
      document.title = running ? `${Math.min(99, Math.floor((bar.value / bar.max) * 100))}% – ${baseTitle}` : baseTitle;
    };
    const apply = (html) => {
      const fragment = one("[data-fragment]", parse(html));
      if (!fragment) return;
      const version = Number(fragment.dataset.version);
      const terminal = fragment.dataset.terminal === "true";
      if (version > Number(panel.dataset.version)) {
        const stepped = fragment.dataset.state !== panel.dataset.state;
        for (const template of all("template[data-slot]", fragment)) {
          const name = template.dataset.slot;
          const text = template.innerHTML.trim();
          if (written.get(name) === text) continue;
          written.set(name, text);
          one(`[data-slot="${name}"]`, panel).replaceChildren(template.content.cloneNode(true));
        }
        panel.dataset.version = fragment.dataset.version;
        panel.dataset.state = fragment.dataset.state;
        panel.dataset.say = fragment.dataset.say;
        panel.dataset.terminal = fragment.dataset.terminal;
        for (const element of all("[data-while]", panel)) show(element, element.dataset.while === fragment.dataset.state);
        more(Number(fragment.dataset.failed));
        if (stepped) {
          worker = null;
          judgeWorker();
        }
        tick();
        retitle();
        announce(fragment, stepped);
        if (stepped) refreshParts();
      }
      if (terminal) finish();
    };
    const more = (failed) => {
      const line = one("[data-new-failures]");
      if (!line || failed <= shownFailed || panel.dataset.terminal === "true") return;
      write(one("a", line), line.dataset.text.replace("{count}", failed - shownFailed));
      show(line, true);
    };

    // What lies outside the panel belongs to the page; it is fetched anew after a change of state, and a part of it is
    // replaced only while nobody is using it.
    const inUse = (element) => {
      const selection = getSelection();
      const selects = selection && !selection.isCollapsed && element.contains(selection.anchorNode);
      return selects || element.contains(document.activeElement) || one("details[open]", element) !== null;
    };
    const refreshParts = async (tries = 0) => {
      const answer = await ask(panel.dataset.page);
      if (answer && answer.status === 200) {
        fresh = new DOMParser().parseFromString(answer.text, "text/html");
        settle();
      } else if (tries < 5) {
        setTimeout(() => refreshParts(tries + 1), wait(3_000 * 2 ** tries));
      }
    };
    const settle = () => {
      if (!fresh) return;
      let left = false;
      for (const element of all("[data-part]")) {
        const replacement = one(`[data-part="${element.dataset.part}"]`, fresh);
        if (!replacement || replacement.innerHTML === element.innerHTML) continue;
        if (inUse(element)) {
          left = true;
          continue;
        }
        element.replaceChildren(...document.importNode(replacement, true).childNodes);
        if (window.htmx) window.htmx.process(element);
      }
      if (panel.dataset.terminal === "true") show(one("[data-new-failures]"), false);
      if (!left) fresh = null;
    };

    const judgeWorker = () => {
      const age = worker ? worker.age + (performance.now() - worker.at) / 1000 : 0;
      let next = "";
      if (worker && mode !== "lost" && mode !== "offline") {
        if (worker.over) next = "quiet_over";
        else if (age >= QUIET_AFTER) next = "quiet";
      }
      const element = part("quiet");
      if (next) write(element, say(next, { duration: duration(worker.age), at: time(Date.parse(worker.until)) }));
      show(element, next !== "");
      for (const row of all("[data-left]", panel)) row.hidden = next !== "";
      if (next !== quiet) {
        if (next) speaker.speak(element.textContent);
        else if (panel.dataset.state === "running" && worker) speaker.speak(say("quiet_back"));
      }
      quiet = next;
    };
    const noteWorker = (age, until) => {
      const over = until && Date.parse(until) <= now();
      worker = until ? { age: Number(age), until, over, at: performance.now() } : null;
      judgeWorker();
    };

    const finish = () => {
      if (mode === "ended") return;
      // A message such as "Stopping" is no longer true.
      write(one("#messages .message-good p"), panel.dataset.say);
      stop();
      enter("ended");
      worker = null;
      judgeWorker();
      retitle();
    };

    // Ask the poll address once and obey: returns whether to go on.
    const poll = async () => {
      const mine = generation;
      const answer = await ask(`${panel.dataset.poll}?v=${panel.dataset.version}`);
      if (mine !== generation || isOver()) return false;
      const status = answer ? answer.status : 0;
      if (status === 401) {
        stop();
        enter("signed_out");
        return false;
      }
      if ([403, 404, 410].includes(status)) {
        stop();
        enter("gone");
        return false;
      }
      if (status === 200 || status === 204) {
        touched();
        if (status === 200) apply(answer.text);
        noteWorker(answer.headers.get("Hub-Worker-Age"), answer.headers.get("Hub-Lease-Until"));
        if (isOver()) return false;
        pollAgain(answer.took);
        return true;
      }
      failures += 1;
      const told = answer ? Number(answer.headers.get("Retry-After")) * 1000 : 0;
      const pause = wait(Math.max(Math.min(2_000 * 2 ** (failures - 1), 30_000), Math.min(told || 0, 30_000)));
      nextTry = performance.now() + pause;
      if (!navigator.onLine) enter("offline");
      else if (failures >= 3) enter("lost");
      describe();
      later(poll, pause);
      return true;
    };
    const pollAgain = (took) => {
      // A hidden tab asks for nothing; it asks at once when it is seen again.
      if (document.hidden) return;
      const age = performance.now() - loaded;
      const base = age < 30_000 ? 2_000 : age < 600_000 ? 5_000 : 15_000;
      const pause = wait(Math.max(base, took * 10));
      every = Math.round(base / 1000);
      enter("polling");
      describe();
      if (performance.now() >= streamAt && mayStream()) later(() => stream(), Math.min(pause, 2_000));
      else later(poll, Math.max(500, Math.min(pause, mayStream() ? Math.max(500, streamAt - performance.now()) : pause)));
    };

    const mayStream = () => "EventSource" in window && navigator.locks !== undefined && !document.hidden;
    const claim = async () => {
      for (let slot = 1; slot <= STREAMS; slot += 1) {
        const let_go = await new Promise((answer) => {
          navigator.locks.request(`hub-stream-${slot}`, { ifAvailable: true }, (lock) => {
            if (!lock) return answer(null);
            return new Promise((done) => answer(done));
          });
        });
        if (let_go) return let_go;
      }
      return null;
    };
    const fall = () => {
      closeStream();
      timers.forEach(clearTimeout);
      timers = [];
      streamAt = performance.now() + STREAM_AGAIN[Math.min(streamTries, STREAM_AGAIN.length - 1)];
      streamTries += 1;
      poll();
    };
    const stream = async () => {
      const mine = generation;
      const mineLock = await claim();
      if (mine !== generation || isOver() || document.hidden) {
        if (mineLock) mineLock();
        return;
      }
      if (!mineLock) {
        streamAt = performance.now() + 15_000;
        poll();
        return;
      }
      release = mineLock;
      later(() => !mode && enter("connecting"), 1_000);
      later(() => source && !lastEvent && fall(), 5_000);
      lastEvent = 0;
      source = new EventSource(panel.dataset.stream);
      const heard = () => {
        lastEvent = performance.now();
        touched();
        enter("live");
      };
      for (const name of ["snapshot", "progress", "state", "end"]) {
        source.addEventListener(name, (event) => {
          heard();
          streamTries = 0;
          // Another attempt may have begun: what was known of a worker's silence is another's.
          if (name === "state") worker = null;
          apply(event.data);
          if (name === "state") judgeWorker();
        });
      }
      source.addEventListener("beat", (event) => {
        const beat = JSON.parse(event.data);
        setClock(beat.now);
        heard();
        noteWorker(beat.worker_age_s, beat.lease_until);
      });
      source.addEventListener("bye", (event) => {
        closeStream();
        streamAt = performance.now() + JSON.parse(event.data).after_ms;
        poll();
      });
      source.onerror = fall;
    };

    const start = () => {
      stop();
      if (panel.dataset.terminal === "true" || isOver()) return;
      if (paused()) {
        enter("paused");
        return;
      }
      if (mode === "paused") mode = "";
      if (document.hidden) return;
      if (mayStream()) stream();
      else poll();
    };
    // At once the truth, then a stream again.
    const resume = () => {
      stop();
      failures = 0;
      streamAt = 0;
      if (panel.dataset.terminal === "true" || isOver()) return;
      if (paused()) start();
      else poll();
    };

    if (panel.dataset.terminal === "true") return;
    panel.addEventListener("click", (event) => {
      if (event.target.closest("[data-pause]")) {
        setPaused(!paused());
        if (paused()) start();
        else resume();
      }
      if (event.target.closest("[data-try-now]")) resume();
      if (event.target.closest("[data-say-now]")) speaker.speak(panel.dataset.say);
    });
    document.addEventListener("visibilitychange", () => {
      clearTimeout(hiddenTimer);
      if (isOver()) return;
      if (document.hidden) {
        // Polls stop at once; a stream may stay half a minute, so that a glance elsewhere does not cost it.
        if (!source) stop();
        else hiddenTimer = setTimeout(stop, SILENCE - 10_000);
      } else {
        speaker.returned();
        if (!source) resume();
      }
    });
    addEventListener("online", resume);
    addEventListener("offline", () => !isOver() && mode !== "paused" && (stop(), enter("offline")));
    addEventListener("pagehide", stop);
    addEventListener("pageshow", (event) => event.persisted && resume());
    setInterval(() => {
      settle();
      if (isOver()) return;
      judgeWorker();
      if (mode === "lost") describe();
      if (source && lastEvent && performance.now() - lastEvent > SILENCE) fall();
    }, 1_000);
    describeFirst();
    start();

    function describeFirst() {
      show(part("no-script"), false);
      show(part("with-script"), true);
      show(part("pause"), true);
      show(part("say-now"), true);
    }
  };

  // The list: rows keep their place; only their changing cells are written.
  const list = (holderOfRows) => {
    const ids = () => all("tr[data-row]", holderOfRows).map((row) => row.dataset.row);
    const connection = one("[data-connection]");
    const button = one("[data-pause]");
    let timer = 0;
    let gone = false;
    const update = (row) => {
      const mine = one(`tr[data-row="${row.dataset.row}"]`, holderOfRows);
      if (!mine || Number(row.dataset.version) <= Number(mine.dataset.version)) return;
      for (const template of all("template[data-cell]", row)) {
        one(`[data-cell="${template.dataset.cell}"]`, mine).replaceChildren(template.content.cloneNode(true));
      }
      Object.assign(mine.dataset, { version: row.dataset.version, terminal: row.dataset.terminal });
    };
    const round = async () => {
      clearTimeout(timer);
      show(button, true);
      write(button, say(paused() ? "resume" : "pause"));
      if (document.hidden || gone) return;
      if (paused()) {
        write(connection, say("paused_list"));
        return;
      }
      const newest = holderOfRows.dataset.newest ? `&newest=${holderOfRows.dataset.newest}` : "";
      const answer = await ask(`${holderOfRows.dataset.rowsUrl}?ids=${ids().join(",")}${newest}`);
      const busy = one('tr[data-terminal="false"]', holderOfRows) !== null;
      if (answer && answer.status === 200) {
        const fresh = one("[data-rows]", parse(answer.text));
        all("[data-row]", fresh).forEach(update);
        if (Number(fresh.dataset.newer) > 0 && one("[data-new-jobs]").hidden) {
          show(one("[data-new-jobs]"), true);
          speaker.speak(one("[data-new-jobs]").textContent.trim());
        }
        write(connection, say("polling", { seconds: busy ? 5 : 15 }));
      } else if (answer && answer.status === 401) {
        gone = true;
        write(connection, say("signed_out"));
        alarm(say("signed_out"));
        return;
      } else if (answer && [403, 404].includes(answer.status)) {
        gone = true;
        write(connection, say("gone"));
        return;
      } else {
        write(connection, say("lost_list"));
      }
      tick();
      timer = setTimeout(round, wait(busy ? 5_000 : 15_000));
    };
    button.addEventListener("click", () => {
      setPaused(!paused());
      round();
    });
    document.addEventListener("visibilitychange", () => !document.hidden && round());
    timer = setTimeout(round, paused() ? 0 : 2_000);
    show(button, true);
  };

  // The question before a cancel comes into a dialog; without script it is a page.
  const dialog = one("#dialog");
  if (dialog) {
    let opener = null;
    // htmx tells of a swap at the link that asked for it.
    document.addEventListener("htmx:after:swap", (event) => {
      if (dialog.open || !dialog.childElementCount) return;
      opener = event.target;
      dialog.showModal();
    });
    dialog.addEventListener("click", (event) => {
      if (!event.target.closest("[data-close]")) return;
      event.preventDefault();
      dialog.close();
    });
    dialog.addEventListener("close", () => {
      if (opener && opener.isConnected) opener.focus();
      dialog.replaceChildren();
    });
  }

  tick();
  setInterval(() => document.hidden || tick(), 1_000);
  all("[data-live]").forEach(job);
  all("[data-job-list]").forEach(list);
})();
