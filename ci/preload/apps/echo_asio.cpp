// An echo server on Boost.Asio: `echo_asio PORT`. SIGTERM ends it.
#include <boost/asio.hpp>
#include <cstdlib>
#include <memory>

namespace asio = boost::asio;
using asio::ip::tcp;

struct Session : std::enable_shared_from_this<Session> {
    tcp::socket socket;
    char bytes[8192];

    explicit Session(tcp::socket accepted) : socket(std::move(accepted)) {}

    void next() {
        auto self = shared_from_this();
        socket.async_read_some(asio::buffer(bytes), [self](auto error, size_t length) {
            if (error)
                return;
            asio::async_write(self->socket, asio::buffer(self->bytes, length), [self](auto failed, size_t) {
                if (!failed)
                    self->next();
            });
        });
    }
};

struct Server {
    tcp::acceptor acceptor;

    Server(asio::io_context &context, int port)
        : acceptor(context, tcp::endpoint(asio::ip::address_v4::loopback(), port)) {
        next();
    }

    void next() {
        acceptor.async_accept([this](auto error, tcp::socket accepted) {
            if (!error)
                std::make_shared<Session>(std::move(accepted))->next();
            next();
        });
    }
};

int main(int, char **arguments) {
    asio::io_context context(1);
    Server server(context, std::atoi(arguments[1]));
    asio::signal_set signals(context, SIGTERM);
    signals.async_wait([&](auto, int) { context.stop(); });
    context.run();
}
