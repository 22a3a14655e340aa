"""SCRAM credentials: the derivation of RFC 5802 and 7677, and what --add-scram takes."""

import base64

import pytest

from ottla.metadata.scram import parse_credentials


def test_the_exchange_of_rfc_7677() -> None:
    """User and pencil: the server's signature over the RFC's messages follows from the server key."""
    import hmac

    (record,) = parse_credentials(
        ["SCRAM-SHA-256=[name=user,password=pencil,salt=W22ZaJ0SNY7soEsUEjb6gQ==,iterations=4096]"]
    )
    messages = (
        b"n=user,r=rOprNGfwEbeRWgbNEkqO,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    )
    signature = hmac.digest(record.server_key, messages, "sha256")
    assert base64.b64encode(signature) == b"6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_a_credential_without_a_salt_gets_its_own() -> None:
    first, second = parse_credentials(["SCRAM-SHA-512=[name=a,password=b]"] * 2)
    assert first.salt != second.salt
    assert (first.mechanism, first.iterations, len(first.stored_key)) == (2, 4096, 64)


def test_a_salted_password_is_taken_as_it_is() -> None:
    plain, salted = parse_credentials(
        [
            "SCRAM-SHA-256=[name=user,password=pencil,salt=W22ZaJ0SNY7soEsUEjb6gQ==]",
            'SCRAM-SHA-256=[name=user,salt="W22ZaJ0SNY7soEsUEjb6gQ",'
            'saltedpassword="xKSVEDI6tPlSysH6mUQZOeeOp01r6B3fcJbodRPcYV0="]',
        ]
    )
    assert plain == salted


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("SCRAM-SHA-256", "equals sign"),
        ("SCRAM-SHA-1=[name=a,password=b]", "not supported"),
        ("SCRAM-SHA-256=name=a", "square brackets"),
        ("SCRAM-SHA-256=[", "square brackets"),
        ("SCRAM-SHA-256=[name]", "No equals sign"),
        ("SCRAM-SHA-256=[password=b]", "'name'"),
        ("SCRAM-SHA-256=[name=a]", "'password'"),
        ("SCRAM-SHA-256=[name=a,saltedpassword=YCE=]", "'salt'"),
        ("SCRAM-SHA-256=[name=a,password=b,salt=*]", "given salt"),
        ("SCRAM-SHA-256=[name=a,password=b,iterations=many]", "iterations count"),
        ("SCRAM-SHA-256=[name=a,password=b,iterations=4095]", "iterations"),
        ("SCRAM-SHA-256=[name=a,password=b,iterations=16385]", "iterations"),
        ("SCRAM-SHA-256=[name=a,password=b,shade=c]", "shade"),
    ],
)
def test_what_is_no_credential(argument: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_credentials([argument])
