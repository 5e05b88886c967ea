"""A network that loses replies and breaks connections."""

import socket
import threading


class Proxy:
    """Forwards connections to a server on this machine.

    Attributes:
        port: The port of the proxy.
        loses: The names of commands. The next reply to each of them is lost once: the connection breaks instead.
        meanwhile: What happens when a reply is lost, before the client can notice it: the function, called without arguments.
        holds: Words of commands. The next reply to each of them is held once: `is_held` is set, and the reply waits for `deliver`.
        requests: How many pieces of requests have passed.
        refuses: How many of the next connections are closed at once.
    """

    def __init__(self, server):
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets = []
        self.port = self._listener.getsockname()[1]
        self.loses = []
        self.meanwhile = lambda: None
        self.holds = []
        self.is_held = threading.Event()
        self.deliver = threading.Event()
        self.refuses = 0
        self.requests = 0

    def __enter__(self):
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *error):
        self._listener.close()
        self.deliver.set()
        self.cut()

    def cut(self):
        """Breaks all connections."""
        for end in self._sockets:
            shut(end)

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.refuses > 0:
                self.refuses -= 1
                client.close()
                continue
            server = socket.create_connection(("127.0.0.1", self._server))
            self._sockets += [client, server]
            faults = threading.Event(), threading.Event()
            threading.Thread(target=self._forward, args=(client, server, *faults, True), daemon=True).start()
            threading.Thread(target=self._forward, args=(server, client, *faults, False), daemon=True).start()

    def _forward(self, source, target, is_lost, is_late, is_request):
        try:
            while data := source.recv(65536):
                self.requests += is_request
                for name in [name for name in self.loses if is_request and name.encode() in data]:
                    self.loses.remove(name)
                    is_lost.set()
                for word in [word for word in self.holds if is_request and word.encode() in data]:
                    self.holds.remove(word)
                    is_late.set()
                if not is_request and is_late.is_set():
                    is_late.clear()
                    self.is_held.set()
                    self.deliver.wait()
                if not is_request and is_lost.is_set():
                    self.meanwhile()
                    break
                target.sendall(data)
        except OSError:
            pass
        shut(source)
        shut(target)


def shut(end):
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
