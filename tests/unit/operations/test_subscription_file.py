"""The file of subscriptions: bounds, names, and that damage costs nothing."""

from pathlib import Path

import pytest

from reconciler.model.state import subscriptions
from reconciler.operations import subscription_file


def made(name: str = "me", who: str = "ada@example.org") -> subscriptions.Subscription:
    return subscriptions.Subscription(identity=who, name=name, kind="email")


def test_what_is_added_is_there_for_its_person(tmp_path: Path) -> None:
    file = subscription_file.SubscriptionFile(tmp_path)
    assert file.all() == ()
    file.add(made())
    file.add(made(who="bob@example.org"))
    assert file.of("ada@example.org") == [made()]
    assert file.remove("ada@example.org", "other") is None
    assert file.remove("ada@example.org", "me") == made()
    assert file.of("ada@example.org") == []
    number = file.ask_test("bob@example.org", "me")
    assert [one.test for one in file.all()] == [number]
    assert file.ask_test("ada@example.org", "me") is None
    file.drop(["bob@example.org"])
    assert file.all() == ()
    assert (tmp_path / subscription_file.FILE).stat().st_mode & 0o777 == 0o600


def test_there_are_only_so_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = subscription_file.SubscriptionFile(tmp_path)
    for number in range(subscriptions.OF_PERSON_MAX):
        file.add(made(f"n{number}"))
    with pytest.raises(subscriptions.SubscriptionError, match="already"):
        file.add(made("n0"))
    with pytest.raises(subscriptions.SubscriptionError, match="the most for one person"):
        file.add(made("more"))
    monkeypatch.setattr(subscriptions, "ALL_MAX", subscriptions.OF_PERSON_MAX + 1)
    file.add(made(who="bob@example.org"))
    with pytest.raises(subscriptions.SubscriptionError, match="the most in all"):
        file.add(made(who="eve@example.org"))


def test_a_damaged_file_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / subscription_file.FILE
    path.write_text('[{"identity": "s3cret')
    file = subscription_file.SubscriptionFile(tmp_path)
    for call in (file.all, lambda: file.add(made()), lambda: file.drop(["x"])):
        with pytest.raises(subscription_file.SubscriptionFileError) as wrong:
            call()
        assert "s3cret" not in str(wrong.value)
    assert path.read_text() == '[{"identity": "s3cret'


def test_results_are_kept_and_may_be_lost(tmp_path: Path) -> None:
    file = subscription_file.SubscriptionFile(tmp_path)
    assert file.results() == {}
    one = subscriptions.TellingResult("ada@example.org", "me", 1.0, "status 404")
    file.keep_results([one])
    assert file.results() == {("ada@example.org", "me"): one}
