// Bun: responds with the body of each request, or a greeting: echo_bun.js PORT.
Bun.serve({
    port: Number(process.argv[2]),
    hostname: '127.0.0.1',
    async fetch(request) {
        const body = await request.arrayBuffer();
        return new Response(body.byteLength ? body : 'Hello, World!');
    },
});
process.on('SIGTERM', () => process.exit(0));
