// The login: a form in place of the page.

import { element, note, visible } from "./elements.js";

// `send` posts a body to a path; `onDone` is called after a login.
export function loginForm(send, onDone) {
  const field = (id, name, properties) => element("p", {},
    element("label", { htmlFor: id }, name), element("input", { id, required: true, maxLength: 256, ...properties }));
  const user = field("login-user", "User", { autocomplete: "username", autocapitalize: "none", spellcheck: false });
  const password = field("login-password", "Password", { type: "password", autocomplete: "current-password" });
  const said = element("div", { role: "alert" }), button = element("button", { type: "submit" }, "Log in");

  async function submit(event) {
    event.preventDefault();
    const secret = password.querySelector("input");
    button.disabled = true;
    try {
      await send("/api/login", { user: user.querySelector("input").value, password: secret.value });
    } catch (error) {
      said.replaceChildren(note("bad", visible(error.message)));
      secret.value = "";
      secret.focus();
      return;
    } finally {
      button.disabled = false;
    }
    onDone();
  }
  return element("form", { className: "login", onsubmit: submit }, element("h1", {}, "Log in"), user, password, element("p", {}, button), said);
}
