// Responds with the body of each request, or a greeting: echo.js PORT.
// SIGTERM ends it in order, so that the library writes its counts.
const http = require('http');
const server = http.createServer((request, response) => {
    const parts = [];
    request.on('data', (part) => parts.push(part));
    request.on('end', () => {
        const body = Buffer.concat(parts.length ? parts : [Buffer.from('Hello, World!')]);
        response.writeHead(200, {'Content-Length': body.length});
        response.end(body);
    });
});
process.on('SIGTERM', () => process.exit(0));
server.listen(Number(process.argv[2]), '127.0.0.1', 1024);
