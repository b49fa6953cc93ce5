// One stream of updates for all tabs of a browser: each says which page it shows, or that nobody sees it.
"use strict";
// Port of a tab -> what it shows, and the tag of the state that it has.
const shown = new Map();
let source = null, waiting = 0, again = 0;

function topics() {
  const found = new Map();
  for (const { topic, state } of shown.values())
    found.set(topic, found.has(topic) && found.get(topic) !== state ? "" : state);
  return [...found];
}

function tell(message, topic) {
  for (const [port, tab] of shown) if (topic === undefined || tab.topic === topic) port.postMessage(message);
}

function open() {
  waiting = 0;
  clearTimeout(again);
  if (source) source.close();
  source = null;
  const now = topics();
  if (!now.length) return;
  const mine = source =
    new EventSource("/events?" + now.map(([t, s]) => "topic=" + encodeURIComponent(t) + "&state=" + s).join("&"));
  source.onopen = () => tell({ live: true });
  source.onerror = () => {
    tell({ live: false });
    if (mine.readyState === EventSource.CLOSED) refused(mine);
  };
  source.addEventListener("update", (event) => {
    const update = JSON.parse(event.data), topic = now[update.t][0];
    for (const tab of shown.values()) if (tab.topic === topic) tab.state = update.s;
    tell({ update }, topic);
  });
}

// A lost connection is made again by the browser, a refused one by us; unless this browser is not signed in any more:
// then the next tab that somebody looks at tries again.
async function refused(mine) {
  let isOut = false;
  try { isOut = (await fetch("/events")).status === 401; } catch { /* not there: try again */ }
  if (mine !== source) return;
  if (isOut) tell({ isOut });
  else again = setTimeout(open, 2000);
}

onconnect = ({ ports: [port] }) => {
  port.onmessage = ({ data }) => {
    if (data) shown.set(port, data);
    else shown.delete(port);
    // Tabs that come and go together open one stream.
    if (!waiting) waiting = setTimeout(open, 30);
  };
};
