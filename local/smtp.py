"""A mail server that can be told to be difficult, and whose mail can be read back."""

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, Envelope, Session

from local.process import free_port


@dataclass(frozen=True, kw_only=True)
class Mail:
    """A message that the server took responsibility for, for one recipient."""

    recipient: str
    message: EmailMessage
    at: float = field(default_factory=time.monotonic)

    @property
    def message_id(self) -> str:
        """Give the Message-ID, empty if it has none."""
        return str(self.message.get("Message-ID", ""))


class Mailbox:
    """A mail server's rules and the mail it took, in order.

    Args:
        busy: recipients whose first try is answered 451 (try again later).
        unknown: recipients who are answered 550 (never again).
        accepted: called, in the server's thread, with each mail before its sender hears of it.
    """

    def __init__(
        self,
        *,
        busy: Collection[str] = (),
        unknown: Collection[str] = (),
        accepted: Callable[[Mail], None] | None = None,
    ) -> None:
        self.port = free_port()
        self.messages: list[Mail] = []
        self._busy = set(busy)
        self._unknown = frozenset(unknown)
        self._accepted = accepted

    async def handle_RCPT(  # noqa: N802 the name and the arguments are aiosmtpd's
        self, _server: SMTP, _session: Session, envelope: Envelope, address: str, _: list[str]
    ) -> str:
        """Answer one RCPT TO by the rules."""
        if address in self._unknown:
            return "550 5.1.1 no such user"
        if address in self._busy:
            self._busy.remove(address)
            return "451 4.2.0 mailbox busy, try again later"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(  # noqa: N802  the name is aiosmtpd's
        self, _server: SMTP, _session: Session, envelope: Envelope
    ) -> str:
        """Take the message, for each recipient apart."""
        content = envelope.original_content or b""
        for recipient in envelope.rcpt_tos:
            mail = Mail(
                recipient=recipient, message=message_from_bytes(content, policy=policy.default)
            )
            self.messages.append(mail)
            if self._accepted is not None:
                self._accepted(mail)
        return "250 OK"


@contextmanager
def smtp(mailbox: Mailbox) -> Iterator[Mailbox]:
    """Serve the mailbox on its port of 127.0.0.1, in a thread."""
    controller = Controller(mailbox, hostname="127.0.0.1", port=mailbox.port)
    controller.start()
    try:
        yield mailbox
    finally:
        controller.stop()
