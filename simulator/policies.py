"""The router's own policies, made for a scenario."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from router.admission.dispatcher import Dispatcher
from router.admission.forecast import Expected, OutputLengths
from router.admission.policy import EVERYTHING, FirstCome
from simulator.scenario import Admission

if TYPE_CHECKING:
    from collections.abc import Mapping

    from router.admission.policy import Policy
    from simulator.scenario import Scenario


@dataclass(frozen=True, slots=True)
class GivenShares:
    """What tenants are entitled to; those not named have weight 1 and no limit."""

    weights: Mapping[str, float]
    slot_shares: Mapping[str, float]

    def weight(self, tenant: str) -> float:
        return self.weights.get(tenant, 1.0)

    def slot_share(self, tenant: str) -> float:
        return self.slot_shares.get(tenant, 1.0)


class KnownLengths(OutputLengths):
    """For requests that ask for exactly the tokens they will get: nothing is left to learn."""

    def learn(self, tenant: str, max_tokens: int, generated: int) -> None:
        pass

    def expect(self, tenant: str, max_tokens: int) -> Expected:
        return Expected(max_tokens, max_tokens, max_tokens)

    def remaining(self, tenant: str, max_tokens: int, generated: int) -> Expected:
        return self.expect(tenant, max(max_tokens - generated, 1))


def policy_of(scenario: Scenario) -> Policy:
    if scenario.admission.shares_slots:
        is_oracle = scenario.admission is Admission.ORACLE
        lengths = KnownLengths() if is_oracle else OutputLengths()
        return Dispatcher(GivenShares(scenario.weights, scenario.slot_shares), lengths)
    return FirstCome(EVERYTHING if scenario.admission is Admission.FIRST_COME else scenario.cap)
