"use strict";

const element = (id) => document.getElementById(id);
const dark = matchMedia("(prefers-color-scheme: dark)");
const shade = () => document.documentElement.classList.toggle("dark-mode", dark.matches);

/** JavaScript would round whole numbers beyond 2^53: an answer that may have one is shown as it was sent. */
function exact(answer) {
  if (/[\s[,:]-?\d{16,}/.test(answer.text ?? "")) answer.headers["content-type"] = "text/plain";
  return answer;
}

/** Shows the operations, with a token if the app asks for one. */
async function start(token) {
  const answer = await fetch("openapi.json", { headers: token ? { authorization: `Bearer ${token}` } : {} });
  const found = await answer.json();
  element("access").hidden = answer.status !== 401;
  element("said").textContent = answer.ok || (answer.status === 401 && !token) ? "" : `${found.message} ${found.what_to_do}`;
  if (!answer.ok) return;
  document.title = found.info.title;
  found.servers = [{ url: new URL("..", location.href).href.replace(/\/$/, "") }]; // also behind a path of a proxy
  const shown = SwaggerUIBundle({
    spec: found,
    domNode: element("operations"),
    deepLinking: true,
    displayRequestDuration: true,
    tryItOutEnabled: true,
    defaultModelsExpandDepth: 0,
    docExpansion: "list",
    validatorUrl: null,
    responseInterceptor: exact,
    onComplete: () => token && shown.preauthorizeApiKey("token", token),
  });
}

dark.addEventListener("change", shade);
shade();
element("access").addEventListener("submit", (event) => {
  event.preventDefault();
  start(element("token").value);
});
start("");
