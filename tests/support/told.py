"""An event that says who set it: a signal's handler must not, since the main thread may hold the event's lock."""

import threading


class Told(threading.Event):
    """`by`: names of the threads that set it."""

    def __init__(self) -> None:
        super().__init__()
        self.by: list[str] = []

    def set(self) -> None:
        self.by.append(threading.current_thread().name)
        super().set()
