"use strict";
const state = document.getElementById("state");
const table = document.getElementById("metrics");

function connect() {
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  const socket = new WebSocket(`${scheme}://${location.host}/metrics/live`);
  socket.onmessage = (message) => {
    state.textContent = "Live";
    table.replaceChildren();
    for (const [name, value] of Object.entries(JSON.parse(message.data))) {
      const row = table.insertRow();
      row.insertCell().textContent = name;
      row.insertCell().textContent = value.toLocaleString("en");
    }
  };
  socket.onclose = () => {
    state.textContent = "Not connected";
    setTimeout(connect, 2000);
  };
}

connect();
