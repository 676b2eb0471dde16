"""Principals out of certificates, as Kafka maps them."""

import pytest

from replication.security.access import ANONYMOUS, Principal
from replication.security.principals import distinguished_name, parse_rules, principal_of

SUBJECT = ((("countryName", "DE"),), (("organizationName", "A, B"),), (("commonName", "Ada"),))
NAME = r"CN=Ada,O=A\, B,C=DE"


def mapped(rules, subject=SUBJECT):
    return principal_of({"subject": subject}, parse_rules(rules))


def test_a_name_is_written_as_java_writes_it():
    assert distinguished_name(SUBJECT) == NAME
    assert distinguished_name(((("commonName", '  #a+b"<=>;\\ '),),)) == r"CN=\ \ \#a\+b\"\<\=\>\;\\\ "
    assert distinguished_name(((("commonName", "a\nb\0,CN=root"),),)) == "CN=a\nb\\00\\,CN\\=root"
    assert distinguished_name(((("emailAddress", "a@b"),),)) == "1.2.840.113549.1.9.1=#1603614062"


@pytest.mark.parametrize(
    ("rules", "user"),
    [
        ("DEFAULT", NAME),
        ("", NAME),
        ("RULE:^CN=(.*?),.*$/$1/", "Ada"),
        ("RULE:^CN=(.*?),.*$/$1/L", "ada"),
        ("RULE:^CN=(.*?),.*$/$1/U, DEFAULT", "ADA"),
        ("RULE:^CN=(.*?),OU=.*$/$1/,RULE:^CN=([^,]*),O=(.*),C=DE$/$1@$2/", r"Ada@A\, B"),
        ("RULE:^OU=(.*?)$/$1/,DEFAULT", NAME),
    ],
)
def test_the_first_rule_that_fits_counts(rules, user):
    assert mapped(rules) == Principal(user)


def test_a_certificate_of_which_no_rule_says_anything_is_nobodys():
    assert mapped("RULE:^OU=(.*?)$/$1/") is None
    assert mapped("RULE:^CN=(Ad)/$1/") is None  # the whole name must fit


def test_without_a_certificate_a_client_has_no_name():
    assert principal_of(None, parse_rules("DEFAULT")) is principal_of({}, ()) is ANONYMOUS


@pytest.mark.parametrize("wrong", ["RULE:a", "RULE:(/x/", "RULE:a/$1/", "RULE:a/b/X", "OTHER", "DEFAULT DEFAULT"])
def test_rules_that_are_none_are_refused(wrong):
    with pytest.raises(ValueError, match=r"RULE:|DEFAULT"):
        parse_rules(wrong)
