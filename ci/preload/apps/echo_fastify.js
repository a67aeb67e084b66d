// Fastify: responds with the body of each request, or a greeting: echo_fastify.js PORT.
const fastify = require('fastify')();
fastify.addContentTypeParser('*', { parseAs: 'buffer' }, (request, body, done) => done(null, body));
fastify.all('/', async (request) => request.body || 'Hello, World!');
process.on('SIGTERM', () => process.exit(0));
fastify.listen({ port: Number(process.argv[2]), host: '127.0.0.1', backlog: 1024 });
