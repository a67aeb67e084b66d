import io.netty.bootstrap.ServerBootstrap;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.channel.ChannelInitializer;
import io.netty.channel.IoHandlerFactory;
import io.netty.channel.MultiThreadIoEventLoopGroup;
import io.netty.channel.ServerChannel;
import io.netty.channel.epoll.EpollIoHandler;
import io.netty.channel.epoll.EpollServerSocketChannel;
import io.netty.channel.nio.NioIoHandler;
import io.netty.channel.socket.SocketChannel;
import io.netty.channel.socket.nio.NioServerSocketChannel;

/** Sends received bytes back: NettyEcho nio|epoll PORT. */
public final class NettyEcho {
    public static void main(String[] args) throws Exception {
        boolean epoll = args[0].equals("epoll");
        IoHandlerFactory factory = epoll ? EpollIoHandler.newFactory() : NioIoHandler.newFactory();
        Class<? extends ServerChannel> channel = epoll ? EpollServerSocketChannel.class : NioServerSocketChannel.class;
        new ServerBootstrap()
            .group(new MultiThreadIoEventLoopGroup(1, factory), new MultiThreadIoEventLoopGroup(2, factory))
            .channel(channel)
            .childHandler(new ChannelInitializer<SocketChannel>() {
                @Override
                protected void initChannel(SocketChannel accepted) {
                    accepted.pipeline().addLast(new ChannelInboundHandlerAdapter() {
                        @Override
                        public void channelRead(ChannelHandlerContext context, Object message) {
                            context.write(message);
                        }

                        @Override
                        public void channelReadComplete(ChannelHandlerContext context) {
                            context.flush();
                        }
                    });
                }
            })
            .bind("127.0.0.1", Integer.parseInt(args[1])).sync().channel().closeFuture().sync();
    }
}
