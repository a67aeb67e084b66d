// Drives the site in headless Chromium: accounts, uploads, a picture, ranges of a video, live metrics, and SIGTERM during
// an upload. Run as `node drive.mjs PROGRAM FOLDER` in a folder with playwright-core; `check` does so.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { readFileSync, readdirSync } from "node:fs";
import http from "node:http";
import https from "node:https";
import net from "node:net";
import { createRequire } from "node:module";
import process from "node:process";
import readline from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

const { chromium } = createRequire(process.cwd() + "/")("playwright-core");
const [program, folder] = process.argv.slice(2);
const media = () => readdirSync(`${folder}/media`);
const unfinished = () => readdirSync(folder).filter((name) => name.startsWith(".tmp"));

async function until(what, condition) {
    for (let attempt = 0; !(await condition()); attempt++) {
        assert.ok(attempt < 6000, `waited too long for: ${what}`);
        await sleep(10);
    }
}

const upload_bytes_max = 1 << 20;
const server = spawn(program, {
    env: { ...process.env, SITE_ADDR: "127.0.0.1:0", SITE_DATA: folder, SITE_UPLOAD_BYTES: `${upload_bytes_max}` },
    stdio: ["ignore", "ignore", "pipe"],
});
const exited = once(server, "exit");
const log = [];
readline.createInterface({ input: server.stderr }).on("line", (line) => log.push(line));
const logged = (text) => log.find((line) => line.includes(text));
await until("the server", () => logged("listening on") || server.exitCode !== null);
const url = logged("listening on")?.match(/https?:\S+/)[0];
assert.ok(url, log.join("\n"));

const browser = await chromium.launch({
    executablePath: process.env.CHROMIUM || "/usr/bin/chromium",
    args: [
        "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
        "--disable-component-update", "--disable-sync", "--autoplay-policy=no-user-gesture-required",
    ],
});
try {
    const context = await browser.newContext({ baseURL: url, ignoreHTTPSErrors: true });
    const page = await context.newPage();
    const errors = [];
    page.on("pageerror", (error) => errors.push(error.message));
    const send = async (name, password, button) => {
        await page.fill("[name=name]", name);
        await page.fill("[name=password]", password);
        const answer = page.waitForResponse((response) => response.request().method() === "POST");
        await page.click(`main button:has-text("${button}")`);
        return (await answer).status();
    };
    const alert = () => page.textContent("[role=alert]");
    const path = () => new URL(page.url()).pathname;

    // Pages that need no account, and one that does.
    const home = await page.goto("/");
    assert.match(home.headers()["set-cookie"] ?? (await home.headerValue("set-cookie")), /HttpOnly; SameSite=Lax/);
    await page.click("text=About");
    assert.equal(await page.textContent("h1"), "About");
    await page.goto("/gallery");
    assert.equal(path(), "/login");
    assert.equal((await page.goto("/none")).status(), 404);

    // Registration.
    await page.goto("/register");
    assert.equal(await send("ada", "short", "Register"), 422);
    assert.match(await alert(), /password has/);
    assert.equal(await send("<b>", "long enough", "Register"), 422);
    assert.equal(await send("ada", "correct horse", "Register"), 303);
    await page.waitForURL("**/gallery");
    const first = (await context.cookies()).find((cookie) => cookie.name.endsWith("visit"));

    // Logout, a wrong password, a user that does not exist, and login.
    await page.click("text=Log out ada");
    await page.waitForURL(url + "/");
    await context.addCookies([first]);
    await page.goto("/gallery");
    assert.equal(path(), "/login", "a session ends with the logout");
    assert.equal(await send("ada", "wrong horse", "Log in"), 401);
    assert.match(await alert(), /is wrong/);
    assert.equal(await send("eve", "correct horse", "Log in"), 401);
    assert.equal(await send("ada", "correct horse", "Log in"), 303);
    await page.waitForURL("**/gallery");
    await page.goto("/register");
    assert.equal(await send("ada", "another horse", "Register"), 422);

    // Forms without the right token change nothing.
    const csrf = await page.inputValue("nav [name=csrf]");
    for (const wrong of ["x", "0".repeat(csrf.length)]) {
        const answer = await context.request.post("/logout", { form: { csrf: wrong } });
        assert.equal(answer.status(), 403);
        const file = { name: "a.png", mimeType: "image/png", buffer: Buffer.from("\x89PNG") };
        const upload = await context.request.post("/upload", { multipart: { csrf: wrong, file } });
        assert.equal(upload.status(), 403);
    }
    await page.goto("/gallery");
    assert.equal(path(), "/gallery");
    assert.deepEqual(media(), []);

    // A picture and a video from the browser itself.
    const made = await page.evaluate(async () => {
        const canvas = document.createElement("canvas");
        [canvas.width, canvas.height] = [320, 240];
        const drawing = canvas.getContext("2d");
        const base64 = async (blob) => {
            const bytes = new Uint8Array(await blob.arrayBuffer());
            return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
        };
        const recorder = new MediaRecorder(canvas.captureStream(25), { mimeType: "video/webm" });
        const recorded = new Promise((resolve) => (recorder.ondataavailable = (event) => resolve(event.data)));
        recorder.start();
        for (let frame = 0; frame < 25; frame++) {
            drawing.fillStyle = `hsl(${frame * 14} 80% 50%)`;
            drawing.fillRect(0, 0, 320, 240);
            await new Promise((resolve) => setTimeout(resolve, 40));
        }
        recorder.stop();
        const picture = await new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
        return { picture: await base64(picture), video: await base64(await recorded) };
    });
    const picture = Buffer.from(made.picture, "base64");
    const video = Buffer.from(made.video, "base64");
    const uploading = async (name, mimeType, buffer) => {
        await page.goto("/gallery");
        await page.setInputFiles("[name=file]", { name, mimeType, buffer });
        const answer = page.waitForResponse((response) => response.request().method() === "POST");
        await page.click("main button");
        return (await answer).status();
    };
    assert.equal(await uploading("a <picture>.png", "image/png", picture), 303);
    await page.waitForSelector("img");
    const width = await page.$eval("img", async (image) => (await image.decode(), image.naturalWidth));
    assert.equal(width, 320);
    assert.match(await page.textContent("figcaption"), /^a <picture>\.png, /);
    assert.equal(await uploading("a.html", "text/html", Buffer.from("<script>alert(1)</script>")), 400);

    const ranges = [];
    page.on("response", (response) => response.url().endsWith(".webm") && ranges.push(response.status()));
    assert.equal(await uploading("film.webm", "video/webm", video), 303);
    await page.waitForSelector("video");
    const shown = await page.$eval("video", async (element) => {
        element.muted = true;
        await element.play();
        await new Promise((resolve) => (element.onended = resolve));
        return { width: element.videoWidth, played: element.currentTime };
    });
    assert.equal(shown.width, 320);
    assert.ok(shown.played > 0);
    assert.ok(ranges.includes(206), `Chromium asks for ranges: ${ranges}`);
    const source = await page.getAttribute("video", "src");
    const part = await context.request.get(source, { headers: { Range: "bytes=100-199" } });
    assert.equal(part.status(), 206);
    assert.equal(part.headers()["content-range"], `bytes 100-199/${video.length}`);
    assert.deepEqual(await part.body(), video.subarray(100, 200));
    const other = await browser.newContext({ baseURL: url, ignoreHTTPSErrors: true });
    assert.match((await other.request.get(source)).url(), /\/login$/, "files are for users");
    await other.close();

    // A file over the limit is refused. Chromium may see the end of the connection first.
    const large = Buffer.concat([picture, Buffer.alloc(upload_bytes_max)]);
    const refused = await context.request
        .post("/upload", { multipart: { csrf, file: { name: "a.png", mimeType: "image/png", buffer: large } } })
        .then((response) => response.status(), () => 413);
    assert.equal(refused, 413);
    assert.equal(media().length, 2);

    // The metrics change without a reload.
    await page.goto("/metrics");
    const requests = async () => {
        const cell = await page.waitForSelector("tr:has(td:text-is('requests')) td:nth-child(2)");
        return Number((await cell.textContent()).replaceAll(",", ""));
    };
    const before = await requests();
    for (let number = 0; number < 20; number++) await context.request.get("/");
    await until("metrics", async () => (await requests()) >= before + 20);
    assert.equal(await page.textContent("#state"), "Live");

    // SIGTERM while an upload and the metrics are open: the upload is finished, the WebSocket is closed.
    const cookies = (await context.cookies()).map((cookie) => `${cookie.name}=${cookie.value}`).join("; ");
    const head = `--x\r\nContent-Disposition: form-data; name="csrf"\r\n\r\n${csrf_of(await page.content())}\r\n--x\r\n` +
        `Content-Disposition: form-data; name="file"; filename="b.png"\r\nContent-Type: image/png\r\n\r\n`;
    const tail = "\r\n--x--\r\n";
    const request = (url.startsWith("https") ? https : http).request(`${url}/upload`, {
        method: "POST",
        rejectUnauthorized: false,
        headers: {
            "Content-Type": "multipart/form-data; boundary=x",
            "Content-Length": head.length + picture.length + tail.length,
            Cookie: cookies,
        },
    });
    const answered = once(request, "response");
    request.write(Buffer.concat([Buffer.from(head), picture.subarray(0, 500)]));
    await until("the beginning of the upload", () => unfinished().length === 1);
    server.kill("SIGTERM");
    await page.waitForSelector("#state:text('Not connected')");
    await until("the end of accepting", refuses);
    assert.equal(server.exitCode, null, "the upload is not over");
    request.end(Buffer.concat([picture.subarray(500), Buffer.from(tail)]));
    const [response] = await answered;
    assert.equal(response.statusCode, 303);
    response.resume();
    const [code, signal] = await exited;
    assert.deepEqual([code, signal], [0, null]);
    assert.equal(media().length, 3);
    const stored = media().map((name) => readFileSync(`${folder}/media/${name}`));
    assert.equal(stored.filter((bytes) => bytes.equals(picture)).length, 2);
    assert.deepEqual(unfinished(), []);
    assert.ok(logged("stopped"));
    assert.ok(!log.some((line) => line.includes("correct horse")), "no password in the log");
    assert.ok(!log.some((line) => line.includes("ERROR")), log.filter((line) => line.includes("ERROR")).join("\n"));
    assert.deepEqual(errors, []);
    console.log(`Chromium: accounts, ${media().length} uploads, ranges, metrics, SIGTERM; ${log.length} lines of log`);
} catch (error) {
    console.error(log.slice(-20).join("\n"));
    throw error;
} finally {
    await browser.close();
    server.kill("SIGKILL");
}

// Returns whether the server refuses connections.
async function refuses() {
    const socket = net.connect(new URL(url).port, "127.0.0.1");
    const refused = await Promise.race([once(socket, "connect").then(() => false), once(socket, "error").then(() => true)])
        .catch(() => true);
    socket.destroy();
    return refused;
}

function csrf_of(html) {
    return html.match(/name="csrf" value="([0-9a-f]+)"/)[1];
}
