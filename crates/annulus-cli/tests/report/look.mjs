// Checks report pages in headless Chromium: at the width of a phone and of a desktop, light and dark, by keyboard, and
// without the script. Started by ci/report in a folder with playwright-core and axe-core:
//   node look.mjs FOLDER-FOR-SCREENSHOTS PAGE.html...
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { basename, join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

// Loads packages from the working directory, not from the folder of this file.
const require = createRequire(join(process.cwd(), "start.js"));
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

const [folder, ...pages] = process.argv.slice(2);
const faults = [];
const check = (right, what) => right || faults.push(what);

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM || "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync"],
});

async function open(file, options) {
  const context = await browser.newContext({ ...options, acceptDownloads: true });
  const page = await context.newPage();
  const where = `${basename(file)} (${options.viewport.width} px, ${options.colorScheme})`;
  const address = pathToFileURL(resolve(file)).href;
  page.on("request", (request) => {
    const url = request.url();
    const own = url === address || url.startsWith("data:") || url.startsWith("blob:");
    check(own, `${where} requests ${url.slice(0, 100)}`);
  });
  page.on("console", (message) => {
    check(!["error", "warning"].includes(message.type()), `${where}, console: ${message.text()}`);
  });
  page.on("pageerror", (error) => check(false, `${where}, error: ${error.message}`));
  await page.goto(address, { waitUntil: "load" });
  return { page, where, context };
}

// Every control can be reached by Tab, and shows the focus.
async function keyboard(page, where) {
  const reachable = "a[href], button, summary, [tabindex='0']";
  const expected = await page.$$eval(reachable, (list) => {
    const visible = list.filter((one) => one.checkVisibility());
    visible.forEach((one, nth) => (one.dataset.nth = nth));
    return visible.length;
  });
  const reached = new Set();
  for (let press = 0; press < expected + 5; press++) {
    await page.keyboard.press("Tab");
    const at = await page.evaluate(() => {
      const one = document.activeElement;
      const style = getComputedStyle(one);
      return { nth: one.dataset.nth, outline: style.outlineStyle !== "none" && style.outlineWidth !== "0px" };
    });
    if (at.nth === undefined) continue;
    reached.add(at.nth);
    check(at.outline, `${where}: control ${at.nth} does not show the focus`);
  }
  check(reached.size === expected, `${where}: ${reached.size} of ${expected} controls are reached by keyboard`);
}

async function accessible(page, where) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => window.axe.run({ resultTypes: ["violations"] }));
  for (const one of violations) {
    const text = `${where}: axe, ${one.impact}: ${one.help} (${one.nodes[0].html.slice(0, 120)})`;
    if (["serious", "critical"].includes(one.impact)) check(false, text);
    else console.log(`note: ${text}`);
  }
}

async function script(page, where) {
  const heading = page.locator("thead th").nth(1);
  await heading.locator("button").click();
  check((await heading.getAttribute("aria-sort")) === "descending", `${where}: a table is not sorted`);
  const first = page.locator("#maps-of svg.map").first();
  await first.scrollIntoViewIfNeeded();
  const box = await first.boundingBox();
  await page.mouse.move(box.x + box.width * 0.4, box.y + box.height * 0.8);
  const readout = await page.locator("p.readout").first().textContent();
  check(/ completions took /.test(readout), `${where}: a heat map shows nothing for the cell under the pointer (${readout})`);
  const [download] = await Promise.all([
    page.waitForEvent("download", { timeout: 5000 }),
    page.locator("button.save").first().click(),
  ]);
  const saved = JSON.parse(readFileSync(await download.path(), "utf8"));
  check(saved.version >= 1 && saved.runs.length > 0, `${where}: the saved JSON is not a report`);
}

for (const file of pages) {
  const name = basename(file, ".html");
  for (const width of [360, 1280]) {
    for (const colorScheme of ["light", "dark"]) {
      const options = { viewport: { width, height: width === 360 ? 740 : 900 }, colorScheme };
      const { page, where, context } = await open(file, options);
      const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
      check(wide <= 0, `${where} is ${wide} px too wide`);
      const broken = await page.$$eval("svg image", (list) => list.filter((one) => one.getBBox().width === 0).length);
      check(broken === 0, `${where}: ${broken} maps are empty`);
      await page.screenshot({ path: `${folder}/${name}-${width}-${colorScheme}.png`, fullPage: true });
      // Each colour scheme and each width once, not all combinations, to save time.
      if ((width === 360) === (colorScheme === "dark")) await accessible(page, where);
      if (width === 1280 && colorScheme === "light") {
        const ms = await page.evaluate(() => performance.getEntriesByType("navigation")[0].loadEventEnd);
        console.log(`${basename(file)}: loaded in ${Math.round(ms)} ms, ${Math.round(readFileSync(file).length / 1000)} kB`);
        await keyboard(page, where);
        await script(page, where);
      }
      await context.close();
    }
  }
  const plain = await open(file, { viewport: { width: 360, height: 740 }, colorScheme: "light", javaScriptEnabled: false });
  check((await plain.page.locator("h1").count()) === 1, `${plain.where} without script has no heading`);
  check(await plain.page.locator("svg.map").first().isVisible(), `${plain.where} without script has no maps`);
  await plain.context.close();
}

await browser.close();
for (const fault of faults) console.error(`report: ${fault}`);
console.log(`${pages.length} pages checked, ${faults.length} faults`);
process.exit(faults.length === 0 ? 0 : 1);
