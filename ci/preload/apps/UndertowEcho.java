import io.undertow.Undertow;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;

/** Responds with the body of each request, or a greeting: UndertowEcho PORT. */
public final class UndertowEcho {
    private static final byte[] GREETING = "Hello, World!".getBytes(StandardCharsets.US_ASCII);

    public static void main(String[] args) {
        Undertow.builder()
            .addHttpListener(Integer.parseInt(args[0]), "127.0.0.1")
            .setIoThreads(2)
            .setWorkerThreads(2)
            .setHandler(exchange -> exchange.getRequestReceiver().receiveFullBytes(
                (same, body) -> same.getResponseSender().send(ByteBuffer.wrap(body.length == 0 ? GREETING : body))))
            .build()
            .start();
    }
}
