# A Rack application that responds with the body of each request, or a greeting.
run lambda { |env|
  body = env["rack.input"].read
  body = "Hello, World!" if body.empty?
  [200, { "content-length" => body.bytesize.to_s }, [body]]
}
