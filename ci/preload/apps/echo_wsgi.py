"""A WSGI application that responds with the body of each request, or a greeting."""


def app(environ, start_response):
    body = environ["wsgi.input"].read() or b"Hello, World!"
    start_response("200 OK", [("Content-Type", "application/octet-stream"), ("Content-Length", str(len(body)))])
    return [body]
