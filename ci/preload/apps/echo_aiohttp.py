"""Responds with the body of each request, or a greeting: echo_aiohttp.py PORT."""

import sys

from aiohttp import web


async def echo(request):
    return web.Response(body=await request.read() or b"Hello, World!")


app = web.Application()
app.router.add_route("*", "/{path:.*}", echo)
web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), access_log=None, print=None)
