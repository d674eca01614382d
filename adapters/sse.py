"""Cut a byte stream into the data of its Server-Sent Events."""

from __future__ import annotations

__all__ = ("SSEDecoder",)

_FIELDS = (b":", b"event:", b"id:", b"retry:", b"data")


class SSEDecoder:
    """
    Bytes in, the data of every complete event out.

    A pure decoder of the event-stream format, as far as providers use it: ``data`` fields, any of the three line
    endings, comments and other fields skipped, several ``data`` lines joined with a line feed. Bytes may be cut
    anywhere, inside a character or a line ending too.

    Args:
        strays: gets the lines that are no field of an event, such as those of an error document between events.

    Source: https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
    """

    __slots__ = ("_begun", "_ends_in_cr", "_lines", "_pieces", "_strays")

    def __init__(self, strays: list[bytes] | None = None) -> None:
        self._strays = strays
        # of a line that is not complete; joined once, however many they are
        self._pieces: list[bytes] = []
        self._lines: list[bytes] = []
        self._ends_in_cr = False
        self._begun = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of the events that `chunk` completes."""
        if not self._begun and chunk:
            chunk = self._without_byte_order_mark(chunk)
        if self._ends_in_cr and chunk:
            # the line feed of a line ending that was cut in two
            self._ends_in_cr = False
            if chunk[:1] == b"\n":
                chunk = chunk[1:]
        if b"\r" in chunk:
            self._ends_in_cr = chunk[-1:] == b"\r"
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = chunk.split(b"\n")
        if self._pieces:
            self._pieces.append(lines[0])
            if len(lines) == 1:
                return []
            lines[0] = b"".join(self._pieces)
            self._pieces.clear()
        if rest := lines.pop():
            self._pieces.append(rest)
        events: list[bytes] = []
        data = self._lines
        for line in lines:
            if not line:
                if data:
                    events.append(data[0] if len(data) == 1 else b"\n".join(data))
                    data.clear()
            elif line.startswith(b"data:"):
                data.append(line[6:] if line[5:6] == b" " else line[5:])
            elif self._strays is not None and not line.startswith(_FIELDS):
                self._strays.append(line)
        return events

    def close(self) -> list[bytes]:
        """The data of a last event whose blank line never came."""
        events = self.feed(b"\n\n") if self._pieces or self._lines else []
        self._begun = True
        return events

    @property
    def rest(self) -> bytes:
        """What has arrived of a line that is not complete."""
        return b"".join(self._pieces)

    def _without_byte_order_mark(self, chunk: bytes) -> bytes:
        mark = b"\xef\xbb\xbf"
        head = self.rest + chunk
        if len(head) < len(mark) and mark.startswith(head):
            self._pieces = [head]
            return b""
        self._pieces.clear()
        self._begun = True
        return head.removeprefix(mark)
