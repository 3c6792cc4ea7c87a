"""A TCP proxy whose connections can fall silent: both ends think that all is well, and nothing comes through."""

import contextlib
import selectors
import socket
import threading
from collections.abc import Iterator

__all__ = ["Blackhole"]


class Blackhole:
    """Listens at `port` and forwards to `target`. Use `running`."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._kept: list[socket.socket] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._forward, daemon=True)

    @classmethod
    @contextlib.contextmanager
    def running(cls, target: int) -> Iterator["Blackhole"]:
        """A proxy in front of a local port."""
        proxy = cls(target)
        proxy._thread.start()
        try:
            yield proxy
        finally:
            proxy._stop.set()
            proxy._thread.join(60)
            for each in (*proxy._pairs, *proxy._kept, proxy._listener):
                each.close()
            proxy._selector.close()

    def silence(self) -> int:
        """Whatever is connected now stays so and hears nothing more; new connections work. How many there were."""
        with self._lock:
            found = list(self._pairs)
            for each in found:
                self._selector.unregister(each)
            self._kept += found
            self._pairs.clear()
            return len(found) // 2

    def _forward(self) -> None:
        while not self._stop.is_set():
            for key, _ in self._selector.select(0.05):
                with self._lock:
                    self._serve(key.fileobj)  # type: ignore[arg-type]

    def _serve(self, ready: socket.socket) -> None:
        if ready is self._listener:
            client, _ = self._listener.accept()
            try:
                server = socket.create_connection(("127.0.0.1", self._target), 5)
            except OSError:
                client.close()
                return
            for one, other in ((client, server), (server, client)):
                self._pairs[one] = other
                self._selector.register(one, selectors.EVENT_READ)
            return
        if ready not in self._pairs:
            return
        try:
            data = ready.recv(1 << 16)
            if data:
                self._pairs[ready].sendall(data)
        except OSError:
            data = b""
        if not data:
            for each in (ready, self._pairs[ready]):
                self._selector.unregister(each)
                del self._pairs[each]
                each.close()
