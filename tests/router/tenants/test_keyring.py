from __future__ import annotations

import fcntl
import stat
import time
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.tenant import Caller
from router.tenants import keys
from router.tenants.keys import Keyring, Reason, Refused
from tests.pace import patience
from tests.router.tenants.values import NOW_S, PEPPER, caller


def ringed(key_id: str = "key-1") -> tuple[Caller, str]:
    text, prefix = keys.mint()
    known = caller(key_id=key_id)
    return replace(known, key=replace(known.key, prefix=prefix, digest=keys.digest(text, PEPPER))), text


def keyring(*callers: Caller) -> Keyring:
    ring = Keyring(PEPPER)
    ring.replace("org-1", callers)
    return ring


def reason(answer: Caller | Refused) -> Reason:
    assert isinstance(answer, Refused)
    return answer.reason


def test_a_minted_key_has_the_agreed_form_and_is_unique() -> None:
    minted = {keys.mint() for _ in range(100)}
    assert len({prefix for _, prefix in minted}) == 100
    for text, prefix in minted:
        start, middle, secret = text.split("-")
        assert (start, middle, len(prefix)) == ("ik", prefix, 8)
        assert len(secret) >= 32
        assert secret.isalnum()


def test_a_key_is_known_by_its_text_alone() -> None:
    known, text = ringed()
    assert keyring(known).verify(text, NOW_S) is known


def test_a_keys_holder_is_found_by_its_id_while_the_key_is_valid() -> None:
    known, _ = ringed()
    ring = keyring(known, ringed("key-2")[0])
    assert ring.holder("org-1", "key-1", NOW_S) is known
    assert ring.holder("org-1", "key-3", NOW_S) is None
    assert ring.holder("org-2", "key-1", NOW_S) is None
    revoked = replace(known, key=replace(known.key, revoked_s=NOW_S))
    expired = replace(known, key=replace(known.key, expires_s=NOW_S))
    assert keyring(revoked).holder("org-1", "key-1", NOW_S) is None
    assert keyring(expired).holder("org-1", "key-1", NOW_S) is None
    assert keyring(expired).holder("org-1", "key-1", NOW_S - 1) is expired


@settings(deadline=None)
@given(st.text(max_size=80), st.integers(0, 51), st.characters())
def test_any_other_key_text_is_refused(text: str, at: int, other: str) -> None:
    known, right = ringed()
    ring = keyring(known)
    assert isinstance(ring.verify(text, NOW_S), Refused)
    wrong = right[:at] + other + right[at + 1 :]
    assert (ring.verify(wrong, NOW_S) is known) == (wrong == right)
    assert isinstance(ring.verify(right + other, NOW_S), Refused)


def test_unknown_wrong_and_revoked_keys_read_alike_and_only_the_holder_learns_of_expiry() -> None:
    known, text = ringed()
    unknown = keyring().verify(text, NOW_S)
    wrong = keyring(known).verify(text[:-1] + ("a" if text[-1] != "a" else "b"), NOW_S)
    revoked = keyring(replace(known, key=replace(known.key, revoked_s=NOW_S))).verify(text, NOW_S)
    malformed = keyring(known).verify("sk-something", NOW_S)
    refusals = [answer for answer in (unknown, wrong, revoked, malformed) if isinstance(answer, Refused)]
    assert [answer.reason for answer in refusals] == [
        Reason.UNKNOWN,
        Reason.WRONG_SECRET,
        Reason.REVOKED,
        Reason.MALFORMED,
    ]
    assert {answer.message for answer in refusals} == {"the API key is not valid"}
    ring = keyring(replace(known, key=replace(known.key, expires_s=NOW_S)))
    expired = ring.verify(text, NOW_S)
    assert isinstance(expired, Refused)
    assert expired.message == "the API key has expired"
    assert reason(ring.verify(text[:-1] + "-", NOW_S)) is Reason.WRONG_SECRET
    assert isinstance(ring.verify(text, NOW_S - 1), Caller)


def test_after_rotation_both_secrets_work_until_the_grace_period_ends() -> None:
    known, old = ringed()
    new, prefix = keys.mint()
    rotated = replace(
        known.key,
        prefix=prefix,
        digest=keys.digest(new, PEPPER),
        previous_prefix=known.key.prefix,
        previous_digest=known.key.digest,
        rotated_s=NOW_S,
        grace_s=60.0,
    )
    ring = keyring(replace(known, key=rotated))
    assert isinstance(ring.verify(new, NOW_S + 1e6), Caller)
    assert isinstance(ring.verify(old, NOW_S + 59), Caller)
    assert reason(ring.verify(old, NOW_S + 60)) is Reason.REPLACED


def test_replacing_an_organisations_keys_drops_only_its_removed_ones() -> None:
    (one, one_text), (two, two_text), (other, other_text) = ringed(), ringed("key-2"), ringed("key-3")
    ring = keyring(one, two)
    ring.replace("org-2", [other])
    ring.replace("org-1", [two])
    assert isinstance(ring.verify(one_text, NOW_S), Refused)
    assert ring.verify(two_text, NOW_S) is two
    assert ring.verify(other_text, NOW_S) is other
    assert len(ring) == 2


def test_a_verification_takes_microseconds_whatever_is_presented() -> None:
    ring = keyring(*(ringed(f"key-{number}")[0] for number in range(1000)))
    known, text = ringed("key-x")
    ring.replace("org-2", [known])
    for presented in (text, text[:-1] + "-", "ik-" + "a" * 49, "x" * 100_000):
        best_s = min(_seconds(ring, presented) for _ in range(20))
        assert best_s < patience(30e-6), f"{best_s * 1e6:.1f} us"


def _seconds(ring: Keyring, presented: str) -> float:
    started_s = time.thread_time()
    for _ in range(50):
        ring.verify(presented, NOW_S)
    return (time.thread_time() - started_s) / 50


def test_the_pepper_is_created_once_and_readable_by_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "pepper"
    pepper = keys.load_pepper(path)
    assert len(pepper) == 32
    assert keys.load_pepper(path) == pepper
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_bytes(b"short")
    with pytest.raises(ValueError, match="expected 32 bytes, found 5"):
        keys.load_pepper(path)


def test_who_starts_while_another_makes_the_pepper_gets_the_same_one(tmp_path: Path) -> None:
    path = tmp_path / "pepper"
    with path.open("wb") as being_made, ThreadPoolExecutor(1) as another:
        fcntl.flock(being_made, fcntl.LOCK_EX)
        waiting = another.submit(keys.load_pepper, path)
        assert not wait([waiting], 0.05).done
        being_made.write(b"p" * 32)
        being_made.close()
        assert waiting.result(patience(30)) == b"p" * 32


def test_the_same_key_has_another_digest_under_another_pepper() -> None:
    text, _ = keys.mint()
    assert keys.digest(text, PEPPER) != keys.digest(text, bytes(32))
    assert keys.fingerprint(PEPPER) != keys.fingerprint(bytes(32))
