// Uses `annulus serve http` from headless Chromium: a page with many assets, seeking in sound, a download.
// Run as `node browse.mjs URL FOLDER` with playwright-core in FOLDER; ci/http-clients does so.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import process from "node:process";

const { chromium } = createRequire(process.cwd() + "/")("playwright-core");
const [url, folder] = process.argv.slice(2);
const hash = (bytes) => createHash("sha256").update(bytes).digest("hex");

const browser = await chromium.launch({
    executablePath: "/usr/bin/chromium",
    args: [
        "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
        "--disable-component-update", "--disable-sync", "--autoplay-policy=no-user-gesture-required",
    ],
});
try {
    const context = await browser.newContext({ ignoreHTTPSErrors: true, acceptDownloads: true });
    const page = await context.newPage();
    const [answers, failed] = [[], []];
    page.on("response", (answer) => answers.push(answer));
    page.on("requestfailed", (request) => {
        const what = `${request.method()} ${request.url()}: ${request.failure().errorText}`;
        // A media element aborts a request when it seeks, and Chromium reports this for every HEAD, from any server.
        if (!request.url().endsWith("/sound.wav") && request.method() !== "HEAD") failed.push(what);
    });

    await page.goto(url + "/");
    assert.equal(await page.textContent("#done"), "all of it");
    assert.equal(await page.evaluate(() => window.loaded), 60);
    const assets = answers.filter((answer) => answer.url().includes("/assets/"));
    assert.equal(assets.length, 120);
    for (const answer of assets) {
        assert.equal(answer.status(), 200, answer.url());
        assert.match(answer.headers()["content-type"], /^text\/(css|javascript)/);
    }
    const protocol = await page.evaluate(() => performance.getEntriesByType("navigation")[0].nextHopProtocol);
    assert.equal(protocol, "h2");

    // The second load revalidates the cached files; nothing has changed.
    answers.length = 0;
    await page.reload();
    const first = answers.find((answer) => answer.url() === url + "/");
    assert.ok([200, 304].includes(first.status()));

    // Seeking requests a range of the file.
    answers.length = 0;
    await page.goto(url + "/sound.html");
    const at = await page.evaluate(async () => {
        const sound = document.getElementById("sound");
        if (sound.readyState < 1) {
            await new Promise((resolve, reject) => {
                sound.onloadedmetadata = resolve;
                sound.onerror = () => reject(new Error(`sound: ${sound.error.message}`));
            });
        }
        const seeked = new Promise((resolve) => (sound.onseeked = resolve));
        sound.currentTime = 100;
        await seeked;
        return { at: sound.currentTime, length: sound.duration };
    });
    assert.equal(at.at, 100);
    assert.equal(Math.round(at.length), 120);
    const parts = answers.filter((answer) => answer.url().endsWith("/sound.wav"));
    assert.ok(parts.some((answer) => answer.status() === 206), "no range of the sound was asked for");

    // Read a whole file in the page.
    const got = await page.evaluate(async (url) => {
        const bytes = await (await fetch(url)).arrayBuffer();
        const digest = await crypto.subtle.digest("SHA-256", bytes);
        return [...new Uint8Array(digest)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
    }, url + "/large.bin");
    assert.equal(got, hash(readFileSync(folder + "/large.bin")));

    // Read a part of it, like a resumed download.
    const rest = await page.evaluate(async (url) => {
        const head = await fetch(url, { method: "HEAD" });
        const from = 5_000_000;
        const asked = { Range: `bytes=${from}-`, "If-Range": head.headers.get("etag") };
        const answer = await fetch(url, { headers: asked });
        return { status: answer.status, bytes: (await answer.arrayBuffer()).byteLength + from };
    }, url + "/large.bin");
    assert.deepEqual(rest, { status: 206, bytes: 32 << 20 });
    assert.deepEqual(failed, []);
    console.log(`Chromium: 120 assets by ${protocol}, ${parts.length} answers for sound, a download resumed`);
} finally {
    await browser.close();
}
