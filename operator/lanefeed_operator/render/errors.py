"""What cannot be rendered: the shell shows it as condition SpecValid=False."""

from lanefeed_operator.errors import OperatorError

__all__ = ["RenderError"]


class RenderError(OperatorError):
    """A job whose objects cannot be made; `path` is the field to change, the text says to what."""

    def __init__(self, path: str, message: str) -> None:
        """Keep both."""
        self.path = path
        super().__init__(f"{path}: {message}")
