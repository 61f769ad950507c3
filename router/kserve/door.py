"""What is served, as offers to Triton's clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.core.embedding import ServedEmbedder
from router.kserve.embedding import EmbeddingOffer
from router.kserve.generation import GenerationOffer
from router.kserve.inference import Door
from router.kserve.offers import Offers
from router.kserve.tensor_models import TensorOffer
from router.routing.models import ServedModel
from router.routing.tensors import ServedTensors

if TYPE_CHECKING:
    from router.kserve.offers import Offer
    from router.request.service import Service
    from router.routing.models import Served
    from router.safety.guard import Safety


def build_door(service: Service, safety: Safety | None = None) -> Door:
    def make(served: Served) -> Offer:
        if isinstance(served, ServedModel):
            return GenerationOffer(served, safety)
        if isinstance(served, ServedEmbedder):
            return EmbeddingOffer(served, safety)
        assert isinstance(served, ServedTensors)
        return TensorOffer(served, safety)

    return Door(service, Offers(service.registry, make))
