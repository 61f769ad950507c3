from __future__ import annotations

from tests.router.running import RunningRouter


async def test_smoke(router: RunningRouter) -> None:
    r = await router.chat()
    print(r.status_code, r.headers, r.text)
    r = await router.chat(stream=True, stream_options={"include_usage": True})
    print(r.status_code, r.headers, r.text)
    r = await router.complete(prompt=["a", "b"], stream=True)
    print(r.text)
    for p in (
        "/metrics",
        "/health/ready",
        "/health/live",
        "/v1/models",
        "/v1/models/tiny",
        "/v1/models/x%2e",
        "/nope",
    ):
        r = await router.http.get(p)
        print(p, r.status_code, r.text[:300])
