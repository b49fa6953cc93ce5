// Brings a page up to date: relative times, events from the server, a log that follows, copy buttons.
// Everything works without it; nothing here is needed to read a page.
(() => {
  "use strict";
  const STEPS = [[60, 1, "s"], [3600, 60, "min"], [86400, 3600, "h"], [Infinity, 86400, "d"]];
  // Attributes that belong to who reads the page.
  const KEPT = ["open", "hidden"];

  function ago(moment) {
    const seconds = Math.max(0, (Date.now() - moment) / 1000);
    const [, size, unit] = STEPS.find(([limit]) => seconds < limit);
    return Math.floor(seconds / size) + " " + unit + " ago";
  }

  function refreshTimes(root) {
    for (const time of root.querySelectorAll("time[datetime]")) {
      const moment = Date.parse(time.dateTime);
      if (Number.isNaN(moment)) continue;
      time.title = new Date(moment).toLocaleString();
      time.textContent = ago(moment);
    }
  }

  function revive(root) {
    refreshTimes(root);
    if (navigator.clipboard) for (const button of root.querySelectorAll("button.copy")) button.hidden = false;
  }

  // Makes `old` what `fresh` is and keeps what need not change: focus, selection, scrolled places and opened details stay.
  function morph(old, fresh) {
    if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) return void old.replaceWith(fresh);
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
      return;
    }
    // What the server last said of a time stands in its attribute; its text is this page's own.
    if (old.nodeName === "TIME" && old.dateTime === fresh.dateTime) return;
    for (const { name } of [...old.attributes])
      if (!fresh.hasAttribute(name) && !KEPT.includes(name)) old.removeAttribute(name);
    for (const { name, value } of fresh.attributes)
      if (old.getAttribute(name) !== value && !KEPT.includes(name)) old.setAttribute(name, value);
    const keyed = new Map([...old.children].filter((c) => c.dataset.key).map((c) => [c.dataset.key, c]));
    let at = old.firstChild;
    for (const child of [...fresh.childNodes]) {
      const same = child.dataset && keyed.get(child.dataset.key);
      if (same && same !== at) old.insertBefore(same, at);
      const mine = same || at;
      if (mine && !(mine.dataset && mine.dataset.key && !same)) {
        at = mine.nextSibling;
        morph(mine, child);
      } else old.insertBefore(child, at);
    }
    while (at) {
      const gone = at;
      at = at.nextSibling;
      gone.remove();
    }
  }

  function element(html) {
    const fresh = document.createElement("template");
    fresh.innerHTML = html;
    return fresh.content.firstElementChild;
  }

  // A part as a whole, or of a list the rows that changed and, where it changed, the order of all.
  function apply({ id, html, order, rows }) {
    const old = document.getElementById(id);
    if (!old) return;
    if (html !== undefined) morph(old, element(html));
    else {
      const known = new Map([...old.children].map((row) => [row.dataset.key, row]));
      for (const key in rows) {
        const fresh = element(rows[key]);
        if (known.has(key)) morph(known.get(key), fresh);
        else known.set(key, fresh);
      }
      let at = old.firstElementChild;
      for (const key of order || []) {
        const row = known.get(key);
        known.delete(key);
        if (row === at) at = at.nextElementSibling;
        else if (row) old.insertBefore(row, at);
      }
      if (order) for (const row of known.values()) row.remove();
    }
    revive(old);
  }

  // Updates come while somebody sees the page: all tabs of a browser share one stream where it has shared workers.
  function follow({ topic, state, worker, events }) {
    const live = document.getElementById("live");
    let isOut = false;
    const say = (on) => {
      isOut = false;
      const text = on ? "live" : "reconnecting";
      if (live.textContent !== text) live.textContent = text;
      live.className = "live " + (on ? "on" : "lost");
    };
    // Signed out: what somebody typed stays, and the way in opens beside it.
    const out = () => {
      isOut = true;
      const link = document.createElement("a");
      link.href = "/login?next=" + encodeURIComponent(topic);
      link.target = "_blank";
      link.textContent = "signed out: log in";
      live.replaceChildren(link);
      live.className = "live lost";
    };
    const update = (changes) => {
      state = changes.s;
      for (const part of changes.parts) apply(part);
    };
    let watch;
    if (window.SharedWorker && !events) {
      const { port } = new SharedWorker(worker);
      port.onmessage = ({ data }) => data.update ? update(data.update) : data.isOut ? out() : say(data.live);
      watch = (seen) => port.postMessage(seen ? { topic, state } : null);
    } else {
      let source, again;
      watch = (seen) => {
        clearTimeout(again);
        if (source) source.close();
        if (!seen) return;
        const mine = source =
          new EventSource((events || "/events?topic=" + encodeURIComponent(topic)) + "&state=" + state);
        source.onopen = () => say(true);
        source.onerror = async () => {
          say(false);
          if (mine.readyState !== EventSource.CLOSED) return;
          // Refused: by a coordinator that is not ready yet, for want of a log-in, or because the page is gone.
          const answer = await fetch(location.href, { method: "HEAD" }).catch(() => null);
          if (mine !== source) return;
          if (answer && answer.status === 401) out();
          else if (!answer || answer.status !== 404) again = setTimeout(() => watch(!document.hidden), 2000);
        };
        source.addEventListener("update", (event) => update(JSON.parse(event.data)));
      };
    }
    addEventListener("focus", () => { if (isOut) watch(true); });
    document.addEventListener("submit", (event) => {
      if (!isOut || event.target.method !== "post" || event.target.getAttribute("action") === "/logout") return;
      event.preventDefault();
      live.firstElementChild.focus();
    });
    document.addEventListener("visibilitychange", () => watch(!document.hidden));
    addEventListener("pagehide", () => watch(false));
    addEventListener("pageshow", (event) => { if (event.persisted) watch(true); });
    watch(!document.hidden);
  }

  async function followLog(log) {
    let offset = Number(log.dataset.offset) || 0;
    for (let pause = 1000; ; pause = Math.min(pause * 2, 30000)) {
      try {
        const answer = await fetch(log.dataset.log + "?follow=true&offset_bytes=" + offset);
        if (answer.ok) {
          const reader = answer.body.getReader();
          const decoder = new TextDecoder();
          for (;;) {
            const { done, value } = await reader.read();
            if (done) break;
            pause = 1000;
            offset += value.length;
            const atEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 8;
            log.append(decoder.decode(value, { stream: true }));
            if (atEnd) log.scrollTop = log.scrollHeight;
          }
        } else if (answer.status < 500 && answer.status !== 404) return;
      } catch { /* the connection broke: try again below */ }
      if (document.querySelector("#job-head .pill.good, #job-head .pill.bad, #job-head .pill.off")) return;
      await new Promise((resume) => setTimeout(resume, pause));
    }
  }

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button.copy");
    if (!button) return;
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });

  // A slash searches, as everywhere.
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, select, textarea")) return;
    const field = document.querySelector("[data-search]");
    if (field) { event.preventDefault(); field.focus(); field.select(); }
  });

  const once = document.querySelector("form[data-once]");
  if (once) {
    // The secret of a link leaves the address before anything else happens.
    history.replaceState(null, "", "/login");
    once.submit();
  }

  revive(document);
  setInterval(() => refreshTimes(document), 10000);
  if (document.body.dataset.topic) follow(document.body.dataset);
  const log = document.querySelector("pre[data-log]");
  if (log) { log.scrollTop = log.scrollHeight; followLog(log); }
})();
