"""What the settings name, as offers to Triton's clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.kserve.embedding import EmbeddingOffer
from router.kserve.generation import GenerationOffer
from router.kserve.inference import Door
from router.kserve.offers import Offers
from router.kserve.relaying import TritonRelay

if TYPE_CHECKING:
    from router.kserve.offers import Offer
    from router.safety.guard import Safety
    from router.service import Service
    from router.settings import Settings
    from router.triton_client import TritonConnection


def build_door(
    service: Service, settings: Settings, triton: TritonConnection, safety: Safety | None = None
) -> Door:
    offers: list[Offer] = []
    for model in settings.models:
        served = service.registry.find(model.name)
        offers.append(GenerationOffer(served, model.pipeline, TritonRelay(triton, model.engine), safety))
    for embedder in settings.embedders:
        found = service.registry.find_embedder(embedder.name)
        offers.append(EmbeddingOffer(found, embedder.triton_model, safety))
    return Door(service, Offers(offers))
