// Walks through every page as people do: sign-up, token, live run, compare, invitation, roles, export, delete.
// Prints one JSON line per finding, and "restart" when the server is to be started anew; ends with 0 if there is none. Called by test_browser.py:
//     node walk.mjs URL WELCOME_KEY|dashboard FOLDER_OF_SCREENSHOTS CHROMIUM
import { createHmac } from "node:crypto";
import { createRequire } from "node:module";
import { mkdirSync, readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [url, key, shots, chromium_path] = process.argv.slice(2);
const require = createRequire(pathToFileURL(process.env.NODE_MODULES_PARENT + "/package.json"));
const { chromium } = require("playwright-core");
const axe_source = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const widths = [360, 800, 1280];
const password = "correct horse battery";
const findings = [];
const found = (where, what) => findings.push({ where, what });
const expect = (condition, where, what) => condition || found(where, what);

mkdirSync(shots, { recursive: true });
const browser = await chromium.launch({ executablePath: chromium_path, args: ["--no-sandbox", "--disable-gpu"] });

const person = async () => {
  const context = await browser.newContext({ acceptDownloads: true });
  const page = await context.newPage();
  page.on("console", (message) => {
    // A refusal that is expected is told by Chromium too, as a failed load of the page itself.
    if (message.type() === "error" && !/status of 40[134]|status of 422|ERR_CONNECTION|ERR_INCOMPLETE_CHUNKED|ERR_EMPTY/.test(message.text())) found(page.url(), message.text());
  });
  page.on("pageerror", (error) => found(page.url(), String(error)));
  return page;
};

// At three widths, in the light and in the dark: nothing runs out of the window, axe finds nothing.
const check = async (page, name) => {
  for (const scheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme: scheme });
    for (const width of widths) {
      await page.setViewportSize({ width, height: 900 });
      await page.waitForTimeout(50); // charts follow the window
      const over = await page.evaluate(() => document.scrollingElement.scrollWidth - innerWidth);
      expect(over <= 0, `${name} ${scheme} ${width}`, `the page is ${over} pixels wider than the window`);
      await page.screenshot({ path: `${shots}/${name}-${scheme}-${width}.png`, fullPage: true });
      if (width === 800) continue;
      const result = await page.evaluate(`${axe_source}; axe.run()`);
      for (const violation of result.violations)
        found(`${name} ${scheme} ${width}`, `${violation.id}: ${violation.nodes.map((node) => node.target.join(" ") + " " + node.failureSummary).join("; ")}`);
    }
  }
  await page.emulateMedia({ colorScheme: "light" });
  const heading = await page.locator("h1").count();
  expect(heading === 1, name, `${heading} headings of the first level`);
};

const join = async (page, link, name) => {
  await page.goto(link);
  await page.getByLabel("Name").fill(name);
  await page.getByLabel("E-mail").fill(`${name}@example.com`);
  await page.getByLabel("Password").fill(password);
  await page.getByRole("button", { name: "Make the account" }).click();
  await page.waitForURL("**/runs");
};

// What an authenticator shows, `steps` after the present one (RFC 6238).
const code_of = (base32, steps) => {
  const bits = [...base32].map((letter) => "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567".indexOf(letter).toString(2).padStart(5, "0")).join("");
  const key = Buffer.from(bits.match(/.{8}/g).map((byte) => parseInt(byte, 2))), step = Buffer.alloc(8);
  step.writeBigUInt64BE(BigInt(Math.floor(Date.now() / 30000) + steps));
  const digest = createHmac("sha1", key).update(step).digest();
  return String((digest.readUInt32BE(digest[19] & 15) & 0x7fffffff) % 1_000_000).padStart(6, "0");
};

// On, in by password and code, in by recovery code, off.
const second_factor = async (page, email) => {
  const form = (action) => page.locator(`form[action="${action}"]`);
  const send = async (action, fields) => {
    for (const [name, value] of Object.entries(fields)) await form(action).locator(`input[name=${name}]`).fill(value);
    await form(action).locator("button").click();
  };
  const sign_in = async () => {
    await page.getByRole("button", { name: "Sign out" }).click();
    await page.waitForURL("**/sign-in");
    await send("/sign-in", { email, password });
  };
  await page.goto(`${url}/account`);
  await send("/account/second-factor", { password });
  const secret = (await page.locator("code.secret").first().textContent()).trim();
  expect(await page.locator("svg.qr").isVisible(), "second factor", "there is no picture");
  await check(page, "second-factor");
  await send("/account/second-factor/confirm", { code: "000000" });
  await check(page, "second-factor-wrong");
  await send("/account/second-factor/confirm", { code: code_of(secret, 0) });
  const recovery = await page.locator(".codes li").allTextContents();
  expect(recovery.length === 10, "recovery codes", `there are ${recovery.length}`);
  await check(page, "recovery-codes");
  await sign_in();
  await check(page, "sign-in-code");
  await send("/sign-in/code", { code: "000000" });
  await check(page, "sign-in-code-wrong");
  await send("/sign-in/code", { code: code_of(secret, 1) });
  await page.waitForURL("**/runs");
  await sign_in();
  await send("/sign-in/code", { code: recovery[0].toUpperCase() });
  await page.waitForURL("**/account");
  await check(page, "account-second-factor");
  await send("/account/second-factor/off", { password, code: recovery[1] });
  await page.getByRole("button", { name: "Set up a second factor" }).waitFor();
};

// What a training process sends.
let token = "";
const send = async (path, body, headers = {}) => {
  const answer = await fetch(url + path, {
    method: "POST", body: JSON.stringify(body),
    headers: { "Content-Type": "application/json", Authorization: `Bearer ${token}`, ...headers },
  });
  if (!answer.ok) throw new Error(`${path}: ${answer.status} ${await answer.text()}`);
  return answer.status === 204 ? null : answer.json();
};
const plan = {
  entries: ["transformer.h.0", "transformer.h.1", "lm_head"].map((name, i) => ({
    name, technique: ["recompute", "offload", "keep"][i], rule: "pressure", saved_bytes: 120_000_000 * (3 - i), cost_ns: 9_000_000 * i,
  })),
};
const begin = async (name, members = {}) =>
  (await send("/api/v1/runs", { model: "GPT2LMHeadModel", name, project: "language", plan, ...members }, { "Idempotency-Key": name.replace(/\W/g, "-").slice(0, 60) })).id;
const append = (run, sequence, count) => {
  const first = (sequence - 1) * count + 1, numbers = Array.from({ length: count }, (_, i) => first + i);
  return send(`/api/v1/runs/${run}/steps`, {
    sequence,
    columns: {
      step: numbers, step_ns: numbers.map((n) => 9e8 + (n % 7) * 1e7), peak_bytes: numbers.map((n) => 3.8e9 + (n % 5) * 2e7),
      resident_bytes: numbers.map(() => 3.1e9), predicted_peak_bytes: numbers.map(() => 3.87e9),
      predicted_step_ns: numbers.map(() => 9.1e8), budget_bytes: numbers.map(() => 4e9),
    },
  });
};

// Asks the test to end the server and start it again; it answers with a line.
const restart = () =>
  new Promise((done) => {
    process.stdin.once("data", done);
    console.log("restart");
  });

// Documents beside a run: another budget from its graph, and a report that is saved, not shown.
const put = async (run, kind, body) => {
  const headers = { "Content-Type": kind === "report" ? "text/html" : "application/json", Authorization: `Bearer ${token}` };
  const answer = await fetch(`${url}/api/v1/runs/${run}/artifacts/${kind}`, { method: "PUT", body, headers });
  if (!answer.ok) throw new Error(`${kind}: ${answer.status} ${await answer.text()}`);
};
const documents = async (page, run) => {
  const data = (name) => readFileSync(new URL(`../../cli/data/${name}.json`, import.meta.url));
  const attack = "<script>fetch('/api/v1/account').then((a) => a.text()).then((text) => { document.title = text; });</script>";
  await put(run, "graph", data("graph_small"));
  await put(run, "hardware", data("hardware_disk"));
  await put(run, "report", attack);
  await page.goto(`${url}/runs/${run}`);
  const [report] = await Promise.all([page.waitForEvent("download"), page.getByRole("link", { name: "report", exact: true }).click()]);
  expect(readFileSync(await report.path(), "utf8") === attack, "report", "is not what was sent");
  expect(page.url().endsWith(`/runs/${run}`), "report", "was shown in place of the page");
  await page.getByLabel("Budgets", { exact: true }).and(page.locator("input")).fill("5");
  await page.getByRole("button", { name: "Plan them" }).click();
  await wait_for("the frontier", async () => (await page.locator("#frontier-chart").count()) === 1); // the page reloads by itself
  await wait_for("its chart", async () => (await page.locator("#frontier-chart").getAttribute("aria-label")) === "Predicted step time of 5 budgets");
  await check(page, "run-frontier");
};

const charted = (page) => page.locator("#memory").getAttribute("aria-label");
const wait_for = async (what, holds) => {
  for (let i = 0; i < 600; i++) {
    if (await holds()) return;
    await new Promise((done) => setTimeout(done, 100));
  }
  found(what, "did not come within a minute");
};

const walk = async () => {
  const owner = await person();
  await owner.goto(`${url}/`);
  await check(owner, "sign-in");
  await owner.getByLabel("E-mail").fill("nobody@example.com");
  await owner.getByLabel("Password").fill("not the password");
  await owner.getByRole("button", { name: "Sign in" }).click();
  await check(owner, "sign-in-wrong");
  await owner.goto(`${url}/welcome/${key}`);
  await check(owner, "welcome");
  await join(owner, `${url}/welcome/${key}`, "owner");
  await check(owner, "runs-empty");
  await owner.getByRole("link", { name: "Privacy" }).click();
  await check(owner, "privacy");
  await owner.getByRole("link", { name: "API" }).click();
  await check(owner, "api");
  await owner.goto(`${url}/nowhere`);
  await check(owner, "not-found");

  await owner.goto(`${url}/runs`);
  await owner.getByRole("link", { name: "tokens" }).click();
  await owner.getByLabel("Name").fill("laptop");
  await owner.getByRole("button", { name: "Make a token" }).click();
  token = (await owner.locator("code.secret").textContent()).trim();
  await check(owner, "tokens");

  const one = await begin("first run"), other = await begin("second-run-with-a-name-that-is-rather-long-and-has-no-blank-in-it");
  await append(one, 1, 200);
  await owner.goto(`${url}/runs`);
  await append(one, 2, 200); // while someone looks at the table
  await wait_for("the table of runs", async () => (await owner.locator("tbody tr", { hasText: "first run" }).textContent()).includes("400"));
  await check(owner, "runs");
  await owner.getByRole("link", { name: "first run" }).click();
  await wait_for("the chart", async () => (await charted(owner)) === "Memory over 400 steps");
  await append(one, 3, 200); // while someone watches
  await wait_for("the live chart", async () => (await charted(owner)) === "Memory over 600 steps");
  expect((await owner.locator("#steps").textContent()) === "600", "run", "the number of steps is not live");
  await check(owner, "run-live");
  await restart();
  await append(one, 4, 200);
  await wait_for("the chart after a restart", async () => (await charted(owner)) === "Memory over 800 steps");
  await send(`/api/v1/runs/${one}/finish`, { outcome: "finished" });
  await wait_for("the end", async () => (await owner.locator("#outcome").textContent()) === "finished");
  await check(owner, "run");
  await documents(owner, one);
  await append(other, 1, 50);
  await owner.getByLabel("With the run").selectOption(other);
  await owner.getByRole("button", { name: "Compare" }).click();
  await check(owner, "compare");
  await owner.goto(`${url}/projects`);
  await check(owner, "projects");
  await owner.getByRole("link", { name: "language" }).click();
  expect((await owner.locator("tbody tr").count()) === 2, "projects", "a project does not lead to its runs");

  await owner.getByRole("link", { name: "My team" }).click();
  for (const role of ["viewer", "member"]) {
    await owner.locator('form[action$="/invitations"] select').selectOption(role);
    await owner.getByRole("button", { name: "Make a link" }).click();
    const link = (await owner.locator("code.secret").textContent()).trim();
    if (role === "viewer") await check(owner, "team-link");
    const guest = await person();
    await join(guest, link, role);
    await guest.getByRole("link", { name: "first run" }).click();
    expect((await guest.getByRole("button", { name: /Delete this run/ }).count()) === 0, role, "may delete a run");
    await guest.getByRole("link", { name: "My team" }).click();
    expect((await guest.getByRole("link", { name: "Tokens" }).count()) === (role === "viewer" ? 0 : 1), role, "tokens");
    expect((await guest.getByRole("button", { name: "Make a link" }).count()) === 0, role, "may invite");
    await check(guest, `team-${role}`);
    await guest.getByRole("link", { name: "Account" }).click();
    await guest.getByRole("button", { name: "Delete the account" }).scrollIntoViewIfNeeded();
    await guest.locator('form[action="/account/delete"] input[name=password]').fill(password);
    if (role === "viewer") {
      await guest.getByRole("button", { name: "Delete the account" }).click();
      await guest.waitForURL("**/sign-in");
    }
    await guest.context().close();
  }
  await owner.reload();
  await owner.goto(`${url}/operator`);
  await check(owner, "operator");
  await owner.getByRole("link", { name: "Account" }).click();
  await check(owner, "account");
  await second_factor(owner, "owner@example.com");
  const [download] = await Promise.all([owner.waitForEvent("download"), owner.getByRole("link", { name: /JSON document/ }).click()]);
  const document = JSON.parse(readFileSync(await download.path(), "utf8"));
  expect(document.account.email === "owner@example.com" && document.runs.length === 2, "export", JSON.stringify(document).slice(0, 200));

  await owner.goto(`${url}/runs/${other}`);
  await owner.getByRole("button", { name: "Delete this run" }).click();
  await owner.waitForURL("**/runs?*");
  expect((await owner.locator("tbody tr").count()) === 1, "runs", "a deleted run is still there");

  // By keyboard alone: skip to the page, out through the last button of the header.
  await owner.goto(`${url}/runs`);
  await owner.keyboard.press("Tab");
  expect((await owner.evaluate(() => document.activeElement.className)) === "skip", "keyboard", "the first stop skips to the page");
  await owner.getByRole("button", { name: "Sign out" }).focus();
  await owner.keyboard.press("Enter");
  await owner.waitForURL("**/sign-in");
};

// The dashboard for one: no account, nothing to change, logs that grow.
const look = async () => {
  const page = await person();
  await page.goto(`${url}/`);
  await wait_for("the log", async () => (await page.locator("tbody tr").count()) === 1);
  expect((await page.getByRole("button", { name: "Sign out" }).count()) === 0, "dashboard", "there is nobody to sign out");
  await check(page, "dashboard-runs");
  await page.getByRole("link", { name: "run.log" }).click();
  await wait_for("the chart", async () => (await charted(page)) === "Memory over 50 steps");
  await restart(); // here: the log grows
  await wait_for("the live chart", async () => (await charted(page)) === "Memory over 80 steps");
  expect((await page.locator("#steps").textContent()) === "80", "dashboard", "the number of steps is not live");
  expect((await page.getByRole("button", { name: /Delete/ }).count()) === 0, "dashboard", "a run could be deleted");
  await check(page, "dashboard-run");
};

try {
  await (key === "dashboard" ? look() : walk());
} catch (error) {
  found("walk", String(error));
}
await browser.close();
process.stdin.destroy();
for (const finding of findings) console.log(JSON.stringify(finding));
process.exit(findings.length > 0 ? 1 : 0);
