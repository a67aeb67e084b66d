// Deno: responds with the body of each request, or a greeting: echo_deno.js PORT.
Deno.serve({ port: Number(Deno.args[0]), hostname: '127.0.0.1' }, async (request) => {
    const body = await request.arrayBuffer();
    return new Response(body.byteLength ? body : 'Hello, World!');
});
Deno.addSignalListener('SIGTERM', () => Deno.exit(0));
