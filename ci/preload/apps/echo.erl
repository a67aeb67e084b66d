%% An echo server with a process for each connection.
-module(echo).
-export([main/1]).

main([Port]) ->
    {ok, Listener} = gen_tcp:listen(list_to_integer(atom_to_list(Port)),
                                    [binary, {active, true}, {nodelay, true}, {ip, {127, 0, 0, 1}}, {backlog, 512}]),
    accept(Listener).

accept(Listener) ->
    {ok, Socket} = gen_tcp:accept(Listener),
    Process = spawn(fun() -> receive start -> echo(Socket) end end),
    _ = gen_tcp:controlling_process(Socket, Process),
    Process ! start,
    accept(Listener).

echo(Socket) ->
    receive
        {tcp, Socket, Data} -> ok = gen_tcp:send(Socket, Data), echo(Socket);
        {tcp_closed, Socket} -> ok
    end.
