import io.undertow.Undertow;

/** Responds with the body of each request: UndertowEcho PORT. */
public final class UndertowEcho {
    public static void main(String[] args) {
        Undertow.builder()
            .addHttpListener(Integer.parseInt(args[0]), "127.0.0.1")
            .setIoThreads(2)
            .setWorkerThreads(2)
            .setHandler(exchange -> exchange.getRequestReceiver().receiveFullBytes(
                (same, body) -> same.getResponseSender().send(java.nio.ByteBuffer.wrap(body))))
            .build()
            .start();
    }
}
