"""Cut a byte stream into the data of its Server-Sent Events."""

from __future__ import annotations

__all__ = ("SSEDecoder",)


class SSEDecoder:
    """
    Bytes in, the data of every complete event out.

    A pure decoder of the event-stream format, as far as providers use it: ``data`` fields, any of the three line
    endings, comments and other fields skipped, several ``data`` lines joined with a line feed. Bytes may be cut
    anywhere, inside a character or a line ending too.

    Source: https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
    """

    __slots__ = ("_begun", "_buffer", "_ends_in_cr", "_lines")

    def __init__(self) -> None:
        self._buffer = b""
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
        lines = (self._buffer + chunk).split(b"\n") if self._buffer else chunk.split(b"\n")
        self._buffer = lines.pop()
        events: list[bytes] = []
        data = self._lines
        for line in lines:
            if not line:
                if data:
                    events.append(data[0] if len(data) == 1 else b"\n".join(data))
                    data.clear()
            elif line.startswith(b"data:"):
                data.append(line[6:] if line[5:6] == b" " else line[5:])
        return events

    def close(self) -> list[bytes]:
        """The data of a last event whose blank line never came."""
        events = self.feed(b"\n\n") if self._buffer or self._lines else []
        self._begun = True
        return events

    @property
    def rest(self) -> bytes:
        """What has arrived of a line that is not complete."""
        return self._buffer

    def _without_byte_order_mark(self, chunk: bytes) -> bytes:
        mark = b"\xef\xbb\xbf"
        head = self._buffer + chunk
        if len(head) < len(mark) and mark.startswith(head):
            self._buffer = head
            return b""
        self._buffer = b""
        self._begun = True
        return head.removeprefix(mark)
