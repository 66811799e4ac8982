import smtplib
from email.message import EmailMessage

import pytest

from local.smtp import Mail, Mailbox, smtp
from tests.local.machine import addresses


def send(mailbox: Mailbox, recipient: str) -> None:
    message = EmailMessage()
    message["Message-ID"] = "<1@example.org>"
    message.set_content("Grüße")
    with smtplib.SMTP("127.0.0.1", mailbox.port, timeout=10) as client:
        client.send_message(message, "queue@example.org", [recipient])


def test_mail_can_be_read_back() -> None:
    with smtp(Mailbox()) as mailbox:
        send(mailbox, "ann@example.org")
        assert addresses(mailbox.port) == {"127.0.0.1"}
    (mail,) = mailbox.messages
    assert (mail.recipient, mail.message_id) == ("ann@example.org", "<1@example.org>")
    assert mail.message.get_content().strip() == "Grüße"
    assert addresses(mailbox.port) == set()


def test_a_busy_recipient_takes_the_second_try() -> None:
    with smtp(Mailbox(busy=["ann@example.org"])) as mailbox:
        with pytest.raises(smtplib.SMTPRecipientsRefused, match="451"):
            send(mailbox, "ann@example.org")
        send(mailbox, "ann@example.org")
    assert len(mailbox.messages) == 1


def test_an_unknown_recipient_is_refused_for_good() -> None:
    with smtp(Mailbox(unknown=["nobody@example.org"])) as mailbox:
        for _ in range(2):
            with pytest.raises(smtplib.SMTPRecipientsRefused, match="550"):
                send(mailbox, "nobody@example.org")
    assert mailbox.messages == []


def test_the_hook_hears_of_a_mail_that_is_already_taken() -> None:
    heard: list[tuple[str, int]] = []

    def hook(mail: Mail) -> None:
        heard.append((mail.recipient, len(mailbox.messages)))

    mailbox = Mailbox(accepted=hook)
    with smtp(mailbox):
        send(mailbox, "ann@example.org")
    assert heard == [("ann@example.org", 1)]
